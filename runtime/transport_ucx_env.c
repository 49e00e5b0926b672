/* What a launcher says about a run, as options of the UCX back end. */
#include "runtime/transport.h"

#include "core/hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The variables by which a launcher tells a process its number. */
typedef struct launcher {
    const char *name, *rank, *size;
    const char *local_size; /* ranks on this host, or NULL */
    const char *runs[2];    /* names of the run, the first one set counts */
} launcher;

static const launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", NULL, {"TORCHELASTIC_RUN_ID"}},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", {"PMI_JOBID", "SLURM_JOB_ID"}},
};
#define N_LAUNCHERS (sizeof launchers / sizeof *launchers)

static bl_status read_number(const launcher *from, const char *name, long min, long max, int *out,
                             bl_error *err) {
    const char *text = getenv(name);
    if (text == NULL)
        return bl_fail(err, BL_ERR_USAGE, "%s is not set, though others of %s's variables are",
                       name, from->name);
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max)
        return bl_fail(err, BL_ERR_USAGE, "%s=%s is not a number from %ld to %ld", name, text, min,
                       max);
    *out = (int)value;
    return BL_OK;
}

/* MASTER_ADDR:MASTER_PORT, or the port above it while torchrun's agent holds that one. */
static bl_status master(const launcher *from, char *text, size_t text_bytes, int *length,
                        bl_error *err) {
    const char *host = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int port;
    BL_TRY(read_number(from, "MASTER_PORT", 1, 65534, &port, err));
    if (host == NULL)
        return bl_fail(err, BL_ERR_USAGE, "MASTER_ADDR is not set, though MASTER_PORT is");
    port += agent != NULL && strcmp(agent, "True") == 0;
    *length =
        snprintf(text, text_bytes, strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host, port);
    return BL_OK;
}

static uint64_t job_of(const launcher *from) {
    for (size_t i = 0; i < sizeof from->runs / sizeof *from->runs; i++) {
        const char *run = from->runs[i] != NULL ? getenv(from->runs[i]) : NULL;
        if (run != NULL)
            return bl_hash64(run, strlen(run));
    }
    return 0;
}

/* mpirun tells nobody where to meet. On one host any port will do that all ranks can work out: from
 * the name of the run, or from the process that started them all. */
static bl_status loopback(const launcher *from, int n_ranks, char *text, size_t text_bytes,
                          int *length, bl_error *err) {
    int n_here;
    if (from->local_size == NULL || getenv(from->local_size) == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "%s does not say where the ranks can meet: set BALLAST_RENDEZVOUS=HOST:PORT "
                       "to a free port on the host of rank 0",
                       from->name);
    BL_TRY(read_number(from, from->local_size, 1, n_ranks, &n_here, err));
    if (n_here != n_ranks)
        return bl_fail(
            err, BL_ERR_USAGE,
            "%d of %d ranks are on this host: set BALLAST_RENDEZVOUS=HOST:PORT to a free "
            "port on the host of rank 0",
            n_here, n_ranks);
    const pid_t parent = getppid();
    const uint64_t job = job_of(from);
    const uint64_t seed = job != 0 ? job : bl_hash64(&parent, sizeof parent);
    *length = snprintf(text, text_bytes, "127.0.0.1:%d", 20000 + (int)(seed % 10000));
    return BL_OK;
}

static bl_status meeting_point(const launcher *from, int n_ranks, char *text, size_t text_bytes,
                               bl_error *err) {
    const char *chosen = getenv("BALLAST_RENDEZVOUS");
    int length = -1;
    if (chosen != NULL)
        length = snprintf(text, text_bytes, "%s", chosen);
    else if (from == &launchers[0] || getenv("MASTER_PORT") != NULL)
        BL_TRY(master(from, text, text_bytes, &length, err));
    else
        BL_TRY(loopback(from, n_ranks, text, text_bytes, &length, err));
    if (length < 0 || (size_t)length >= text_bytes)
        return bl_fail(err, BL_ERR_USAGE, "the ranks' meeting point is longer than %zu bytes",
                       text_bytes - 1);
    return BL_OK;
}

bl_status bl_ucx_options_from_env(bl_ucx_options *options, char *text, size_t text_bytes,
                                  bool *found, bl_error *err) {
    const launcher *from = NULL;
    for (size_t i = 0; i < N_LAUNCHERS && from == NULL; i++)
        if (getenv(launchers[i].rank) != NULL || getenv(launchers[i].size) != NULL)
            from = &launchers[i];
    *found = from != NULL;
    if (from == NULL)
        return BL_OK;
    int rank, n_ranks;
    BL_TRY(read_number(from, from->size, 1, 1000000, &n_ranks, err));
    BL_TRY(read_number(from, from->rank, 0, n_ranks - 1, &rank, err));
    BL_TRY(meeting_point(from, n_ranks, text, text_bytes, err));
    options->rank = rank;
    options->n_ranks = n_ranks;
    options->rendezvous = text;
    options->rendezvous_fd = -1;
    options->job = job_of(from);
    return BL_OK;
}
