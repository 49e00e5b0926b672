/*
 * Replays a fuzzer's corpus without libFuzzer, so that every `make test` runs it: links with one
 * fuzz_<reader>.c and feeds it each file of tests/fuzz/corpus/fuzz_<reader>/, each truncation of small
 * files, and single-byte changes. Surviving is passing.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void mutate(uint8_t *data, size_t size) {
    const size_t step = size > 512 ? size / 512 : 1;
    for (size_t cut = 0; cut < size; cut += step)
        LLVMFuzzerTestOneInput(data, cut);
    for (size_t at = 0; at < size; at += step) {
        const uint8_t kept = data[at];
        data[at] = (uint8_t)(kept ^ 0x81);
        LLVMFuzzerTestOneInput(data, size);
        data[at] = 0xff;
        LLVMFuzzerTestOneInput(data, size);
        data[at] = kept;
    }
}

int main(int argc, char **argv) {
    (void)argc;
    const char *name = strrchr(argv[0], '/');
    name = name != NULL ? name + 1 : argv[0];
    if (strncmp(name, "replay_", 7) == 0)
        name += 7;
    char folder[512];
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        printf("not ok 1 - %s: no corpus in %s\n1..1\n", name, folder);
        return 1;
    }
    int files = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.')
            continue;
        FILE *in = fopen(path, "rb");
        if (in == NULL)
            continue;
        static uint8_t buffer[1 << 20];
        const size_t size = fread(buffer, 1, sizeof buffer, in);
        fclose(in);
        uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a sanitizer sees overreads */
        if (exact == NULL)
            return 1;
        memcpy(exact, buffer, size);
        LLVMFuzzerTestOneInput(exact, size);
        mutate(exact, size);
        free(exact);
        files++;
    }
    closedir(dir);
    printf("%s 1 - %s: %d corpus files with truncations and changes\n1..1\n",
           files > 0 ? "ok" : "not ok", name, files);
    return files > 0 ? 0 : 1;
}
