#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char paths[8][512];
static char temp_dir[64];

static char *next_path(void) {
    static unsigned at;
    return paths[at++ % 8];
}

void bl_test_has(const char *text, const char *part) {
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

const char *bl_test_data(const char *relative) {
    const char *root = getenv("BALLAST_TEST_DATA");
    char *path = next_path();
    snprintf(path, sizeof paths[0], "%s/%s", root != NULL ? root : "../shared/data", relative);
    if (access(path, R_OK) != 0) {
        printf("# %s is not there\n", path);
        skip();
    }
    return path;
}

static void remove_temp(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", temp_dir);
    if (system(command) != 0)
        fprintf(stderr, "could not remove %s\n", temp_dir);
}

const char *bl_test_temp(const char *name) {
    if (temp_dir[0] == '\0') {
        snprintf(temp_dir, sizeof temp_dir, "/tmp/ballast-test-XXXXXX");
        if (mkdtemp(temp_dir) == NULL)
            fail_msg("cannot make %s", temp_dir);
        atexit(remove_temp);
    }
    char *path = next_path();
    snprintf(path, sizeof paths[0], "%s/%s", temp_dir, name);
    return path;
}

const char *bl_test_write(const char *name, const char *text) {
    const char *path = bl_test_temp(name);
    FILE *out = fopen(path, "wb");
    if (out == NULL || fwrite(text, 1, strlen(text), out) != strlen(text) || fclose(out) != 0)
        fail_msg("cannot write %s", path);
    return path;
}
