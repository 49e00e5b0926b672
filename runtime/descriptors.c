#include "runtime/descriptors.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/resource.h>

/* Measured (4 ranks need between 24 and 32, 16 serve with 22 once they are connected), rounded up. */
#define OF_A_RANK 40
#define OF_A_PEER 4

/* Those that are open already; an engine may have thousands. */
static rlim_t count_open(void) {
    rlim_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return n;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

bl_status bl_descriptors_want(int n_ranks, bl_error *err) {
    struct rlimit limit;
    const rlim_t wanted = count_open() + OF_A_RANK + OF_A_PEER * (rlim_t)n_ranks;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return BL_OK;
    const struct rlimit raised = {.rlim_cur = wanted, .rlim_max = limit.rlim_max};
    if (limit.rlim_max >= wanted && setrlimit(RLIMIT_NOFILE, &raised) == 0)
        return BL_OK;
    return bl_fail(err, BL_ERR_IO,
                   "one of %d ranks may need %llu open files, and the limit is %llu; raise it "
                   "(ulimit -n %llu) or run fewer ranks",
                   n_ranks, (unsigned long long)wanted, (unsigned long long)limit.rlim_max,
                   (unsigned long long)wanted);
}
