/* Statistics of any trace that can be read: figures or one clear message. The bytes are the content of a
 * chunk (blt_chunk.h); what comes out is looked at under a plan for two ranks, under the rule that bits 2
 * to 4 of byte 0 choose. */
#include "core/split.h"
#include "tests/fuzz/blt_chunk.h"
#include "tracer/stat.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

static void check(const bl_stat *stat) {
    require(stat->tokens > 0 && stat->steps + stat->late_steps > 0);
    for (int l = 0; l < stat->info.n_layers; l++) {
        uint64_t sum = 0;
        for (int expert = 0; expert < stat->info.n_experts; expert++)
            sum += bl_stat_count(stat, l, expert);
        require(sum == stat->layers[l].experts.assignments);
        require(stat->layers[l].conserved == (stat->layers[l].why == NULL));
    }
}

static void read_stat(const char *path, unsigned rule) {
    static const bl_rule rules[] = {BL_RULE_EVEN, BL_RULE_PER_STEP, BL_RULE_NEAREST, BL_RULE_FIXED};
    static const int host[] = {0, 0};
    bl_error err = BL_ERROR_INIT;
    bl_stat stat = {0};
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    bl_placement placement;
    require(bl_placement_create(2, 4, (int[]){1, 2}, 2, (int[]){3, 2}, &placement, &err) == BL_OK);
    bl_placement_fill_contiguous(&placement);
    if (rule < sizeof rules / sizeof rules[0])
        options.plan = (bl_stat_plan){&placement, rules[rule], NULL, host};
    if (bl_stat_read(path, &options, &stat, &err) < 0)
        require(err.text[0] != '\0');
    else
        check(&stat);
    bl_stat_free(&stat);
    bl_placement_free(&placement);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    size_t n = 0;
    unsigned char *file = blt_file_of_chunk(data, size, &n);
    if (file == NULL)
        return 0;
    snprintf(path, sizeof path, "/tmp/fuzz_stat.%ld.blt", (long)getpid());
    FILE *out = fopen(path, "wb");
    if (out != NULL && fwrite(file, 1, n, out) == n && fclose(out) == 0)
        read_stat(path, data[0] >> 2 & 7u);
    unlink(path);
    free(file);
    return 0;
}
