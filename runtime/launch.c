#include "runtime/launch.h"

#include "core/mem.h"
#include "core/progress.h"
#include "runtime/descriptors.h"
#include "runtime/launch_pipe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct child {
    pid_t pid; /* 0: not started, or reaped */
    int fd;    /* read end of its pipe, -1 once closed */
    bl_report report;
    bl_status fault;   /* found by the launcher, not said by the rank */
    int failure_order; /* 1 failed first; 0: has not failed */
} child;

typedef struct launch {
    int n_ranks, n_failed;
    const bl_launch_options *options;
    child *children;        /* [n_ranks] */
    bl_rank_end *ends;      /* [n_ranks], the caller's */
    double first_done_s;    /* when the first rank ended well; 0: none has */
    double first_failure_s; /* on the clock of bl_now_s() */
    int ending_signal;      /* sent to end the others: 0, SIGTERM, SIGKILL */
    int interrupted_by;     /* signal that came to the launcher, or 0 */
    int signal_fd;
    sigset_t old_mask;
    struct sigaction old_child_action;
} launch;

/* ---- in the rank ---------------------------------------------------------------------------- */

bl_status bl_seat_put(const bl_seat *seat, const void *data, size_t bytes, bl_error *err) {
    if (!bl_pipe_put_result(seat->launcher_fd, data, bytes))
        return bl_fail(err, BL_ERR_IO, "rank %d cannot report to its launcher: %s", seat->rank,
                       strerror(errno));
    return BL_OK;
}

bl_ucx_options bl_seat_ucx_options(const bl_seat *seat, double deadline_s) {
    return (bl_ucx_options){.rank = seat->rank,
                            .n_ranks = seat->n_ranks,
                            .rendezvous = seat->rendezvous,
                            .rendezvous_fd = seat->rendezvous_fd,
                            .job = seat->job,
                            .deadline_s = deadline_s,
                            .silence_s = BL_TRANSPORT_SILENCE_S};
}

/* Standard input belongs to the launcher. */
static void empty_stdin(void) {
    const int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd > 0) {
        dup2(null_fd, STDIN_FILENO);
        close(null_fd);
    }
}

static _Noreturn void be_rank(const launch *run, const bl_seat *seat, pid_t launcher,
                              bl_rank_fn *fn, void *user) {
    /* Die with the launcher, also when it died before this line. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher)
        _exit(EXIT_FAILURE);
    setpgid(0, 0);
    for (int rank = 0; rank < run->n_ranks; rank++)
        if (run->children[rank].fd >= 0)
            close(run->children[rank].fd);
    close(run->signal_fd);
    empty_stdin();
    sigaction(SIGCHLD, &run->old_child_action, NULL);
    sigprocmask(SIG_SETMASK, &run->old_mask, NULL);
    bl_last_words words = {.err = BL_ERROR_INIT};
    words.status = fn(seat, user, &words.err);
    fflush(NULL);
    const bool told = bl_pipe_put_last_words(seat->launcher_fd, &words);
    _exit(told && words.status >= 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* ---- starting ------------------------------------------------------------------------------- */

/* A listening socket on a free port of the loopback device, and its name. */
static bl_status open_meeting_point(int backlog, bl_seat *seat, bl_error *err) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, backlog) != 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        const int cause = errno;
        if (fd >= 0)
            close(fd);
        return bl_fail(err, BL_ERR_IO, "cannot listen on 127.0.0.1 for the ranks to meet: %s",
                       strerror(cause));
    }
    seat->rendezvous_fd = fd;
    snprintf(seat->rendezvous, sizeof seat->rendezvous, "127.0.0.1:%u",
             (unsigned)ntohs(address.sin_port));
    return BL_OK;
}

/* From here on signals arrive through signal_fd, until give_signals_back(). */
static bl_status take_signals(launch *run, bl_error *err) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGHUP);
    run->signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (run->signal_fd < 0)
        return bl_fail(err, BL_ERR_IO, "cannot watch for signals: %s", strerror(errno));
    /* A caller that ignores SIGCHLD would have its children reaped unseen. */
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &standard, &run->old_child_action);
    sigprocmask(SIG_BLOCK, &mask, &run->old_mask);
    return BL_OK;
}

static void give_signals_back(launch *run) {
    close(run->signal_fd);
    sigaction(SIGCHLD, &run->old_child_action, NULL);
    sigprocmask(SIG_SETMASK, &run->old_mask, NULL);
}

static bl_status start_rank(launch *run, const bl_seat *base, int rank, bl_rank_fn *fn, void *user,
                            bl_error *err) {
    int ends[2];
    if (pipe(ends) != 0)
        return bl_fail(err, BL_ERR_IO, "cannot make a pipe for rank %d: %s", rank, strerror(errno));
    run->children[rank].fd = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        bl_seat seat = *base;
        seat.rank = rank;
        seat.launcher_fd = ends[1];
        if (rank != 0) {
            close(seat.rendezvous_fd);
            seat.rendezvous_fd = -1;
        }
        be_rank(run, &seat, launcher, fn, user);
    }
    const int cause = errno;
    close(ends[1]);
    if (pid < 0)
        return bl_fail(err, BL_ERR_IO, "cannot start a process for rank %d: %s", rank,
                       strerror(cause));
    run->children[rank].pid = pid;
    return BL_OK;
}

static void signal_all(const launch *run, int signal_number) {
    for (int rank = 0; rank < run->n_ranks; rank++)
        if (run->children[rank].pid > 0)
            kill(run->children[rank].pid, signal_number);
}

static bl_status start_all(launch *run, bl_rank_fn *fn, void *user, bl_error *err) {
    bl_seat seat = {.n_ranks = run->n_ranks, .rendezvous_fd = -1, .launcher_fd = -1};
    BL_TRY(open_meeting_point(run->n_ranks, &seat, err));
    if (getrandom(&seat.job, sizeof seat.job, 0) != sizeof seat.job)
        seat.job = bl_now_ns() ^ (uint64_t)getpid();
    fflush(NULL); /* or each rank would write it again */
    bl_status st = BL_OK;
    for (int rank = 0; st == BL_OK && rank < run->n_ranks; rank++)
        st = start_rank(run, &seat, rank, fn, user, err);
    close(seat.rendezvous_fd);
    return st;
}

/* ---- waiting -------------------------------------------------------------------------------- */

static void note_failure(launch *run, int rank) {
    if (run->children[rank].failure_order != 0)
        return;
    if (run->n_failed == 0)
        run->first_failure_s = bl_now_s();
    run->children[rank].failure_order = ++run->n_failed;
}

static void close_pipe(child *from) {
    if (from->fd >= 0)
        close(from->fd);
    from->fd = -1;
}

/* Read all there is now; closes the pipe at its end. */
static void drain(launch *run, int rank) {
    child *from = &run->children[rank];
    unsigned char buffer[1 << 16];
    while (from->fd >= 0) {
        const ssize_t n = read(from->fd, buffer, sizeof buffer);
        if (n > 0) {
            const bl_status st = bl_report_feed(&from->report, buffer, (size_t)n);
            if (st < 0 && from->fault == BL_OK)
                from->fault = st;
        } else if (n < 0 && errno == EAGAIN) {
            break;
        } else if (n == 0 || errno != EINTR) {
            close_pipe(from);
        }
    }
    if (from->fault < 0 || (from->report.has_ended && from->report.words.status < 0))
        note_failure(run, rank);
}

static void reap(launch *run) {
    for (int rank = 0; rank < run->n_ranks; rank++) {
        child *ended = &run->children[rank];
        int how;
        if (ended->pid <= 0 || waitpid(ended->pid, &how, WNOHANG) != ended->pid)
            continue;
        ended->pid = 0;
        run->ends[rank].signal = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
        run->ends[rank].exit_code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
        drain(run, rank); /* all it ever wrote is in the pipe now */
        close_pipe(ended);
        if (!ended->report.has_ended || run->ends[rank].signal != 0)
            note_failure(run, rank);
        else if (ended->report.words.status >= 0 && run->first_done_s <= 0)
            run->first_done_s = bl_now_s();
    }
}

static void read_signals(launch *run) {
    struct signalfd_siginfo info;
    while (read(run->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        run->interrupted_by = (int)info.ssi_signo;
        signal_all(run, run->interrupted_by);
    }
}

static bool any_running(const launch *run) {
    for (int rank = 0; rank < run->n_ranks; rank++)
        if (run->children[rank].pid > 0)
            return true;
    return false;
}

/* End those that did not end by themselves; returns how long to wait for the next such step in ms,
 * -1 for as long as it takes. */
static int enforce_grace(launch *run) {
    const bool go_on = run->options->others_go_on;
    const double since_s = go_on ? run->first_done_s : run->first_failure_s;
    if ((go_on ? since_s <= 0 : run->n_failed == 0) || run->ending_signal == SIGKILL)
        return -1;
    const double grace_s = run->options->grace_s;
    const double due_s = since_s + grace_s * (run->ending_signal == 0 ? 1 : 2);
    const double left_s = due_s - bl_now_s();
    if (left_s > 0)
        return left_s < 1e6 ? (int)(left_s * 1e3) + 1 : -1;
    for (int rank = 0; rank < run->n_ranks; rank++)
        if (run->children[rank].pid > 0)
            run->ends[rank].ended_by_us = true;
    run->ending_signal = run->ending_signal == 0 ? SIGTERM : SIGKILL;
    signal_all(run, run->ending_signal);
    return run->ending_signal == SIGTERM ? 0 : -1;
}

static void wait_for_all(launch *run, struct pollfd *polled) {
    for (;;) {
        reap(run);
        if (!any_running(run))
            return;
        const int wait_ms = enforce_grace(run);
        for (int rank = 0; rank < run->n_ranks; rank++)
            polled[rank] = (struct pollfd){run->children[rank].fd, POLLIN, 0};
        polled[run->n_ranks] = (struct pollfd){run->signal_fd, POLLIN, 0};
        if (poll(polled, (nfds_t)run->n_ranks + 1, wait_ms) <= 0)
            continue;
        for (int rank = 0; rank < run->n_ranks; rank++)
            if (polled[rank].revents != 0)
                drain(run, rank);
        if (polled[run->n_ranks].revents != 0)
            read_signals(run);
    }
}

/* ---- the outcome ---------------------------------------------------------------------------- */

static void fill_ends(launch *run) {
    for (int rank = 0; rank < run->n_ranks; rank++) {
        child *from = &run->children[rank];
        bl_rank_end *end = &run->ends[rank];
        close_pipe(from);
        end->result = from->report.result;
        end->result_bytes = from->report.result_bytes;
        if (from->fault < 0)
            end->status = from->fault;
        else
            end->status = from->report.has_ended ? from->report.words.status : BL_ERR_PEER;
    }
}

/* How likely a failed rank is the cause of it all; less is likelier. Where the others go on after a
 * death, what ended them is the cause, and they have said it; who then stopped since too few were
 * left is not. */
static int cause_class(const launch *run, int rank) {
    const bl_rank_end *end = &run->ends[rank];
    const bool go_on = run->options->others_go_on;
    if (end->ended_by_us)
        return 4;
    if (!run->children[rank].report.has_ended || end->signal != 0)
        return go_on ? 2 : 0;
    if (end->status == BL_ERR_PEER)
        return 3;
    return go_on && end->status != BL_ERR_ABORTED ? 0 : 1;
}

static int find_cause(const launch *run) {
    int cause = -1;
    for (int rank = 0; rank < run->n_ranks; rank++) {
        if (run->children[rank].failure_order == 0)
            continue;
        const int order = cause < 0 ? -1 : cause_class(run, rank) - cause_class(run, cause);
        if (order < 0 ||
            (order == 0 && run->children[rank].failure_order < run->children[cause].failure_order))
            cause = rank;
    }
    return cause;
}

static bl_status report_cause(const launch *run, int rank, bl_error *err) {
    const child *from = &run->children[rank];
    const bl_rank_end *end = &run->ends[rank];
    if (run->interrupted_by != 0)
        return bl_fail(err, BL_ERR_ABORTED, "interrupted by signal %d (%s)", run->interrupted_by,
                       strsignal(run->interrupted_by));
    if (end->signal != 0)
        return bl_fail(err, BL_ERR_PEER, "rank %d was ended by signal %d (%s)", rank, end->signal,
                       strsignal(end->signal));
    if (from->fault < 0)
        return bl_fail(err, from->fault, "the launcher could not take the result of rank %d: %s",
                       rank, bl_status_string(from->fault));
    if (!from->report.has_ended)
        return bl_fail(err, BL_ERR_PEER, "rank %d exited with code %d before it was done", rank,
                       end->exit_code);
    const bl_error *said = &from->report.words.err;
    const bl_where where = {said->file[0] != '\0' ? said->file : NULL, said->line, said->byte,
                            said->layer, said->expert};
    return bl_fail_at(err, end->status, where, "rank %d: %s", rank,
                      said->text[0] != '\0' ? said->text : bl_status_string(end->status));
}

static bl_status run_all(launch *run, bl_rank_fn *fn, void *user, struct pollfd *polled,
                         bl_error *err) {
    const bl_status st = start_all(run, fn, user, err);
    if (st < 0) {
        signal_all(run, SIGKILL);
    } else if (run->options->started != NULL) {
        int pids[BL_LAUNCH_MAX_RANKS];
        for (int rank = 0; rank < run->n_ranks; rank++)
            pids[rank] = (int)run->children[rank].pid;
        run->options->started(pids, run->n_ranks, user);
    }
    wait_for_all(run, polled);
    fill_ends(run);
    if (st < 0)
        return st;
    const int cause = find_cause(run);
    return cause < 0 ? BL_OK : report_cause(run, cause, err);
}

bl_status bl_launch_ranks(int n_ranks, bl_rank_fn *fn, void *user, const bl_launch_options *options,
                          bl_rank_end *ends, bl_error *err) {
    if (n_ranks < 1 || n_ranks > BL_LAUNCH_MAX_RANKS)
        return bl_fail(err, BL_ERR_RANGE, "cannot start %d ranks; 1 to %d is what works", n_ranks,
                       BL_LAUNCH_MAX_RANKS);
    launch run = {.n_ranks = n_ranks, .options = options, .ends = ends};
    struct pollfd *polled = NULL;
    bl_status st;
    memset(ends, 0, sizeof *ends * (size_t)n_ranks);
    BL_TRY(bl_descriptors_want(n_ranks, err));
    BL_TRY_GOTO(st, BL_CALLOC(run.children, n_ranks, err), out);
    BL_TRY_GOTO(st, BL_CALLOC(polled, n_ranks + 1, err), out);
    for (int rank = 0; rank < n_ranks; rank++) {
        run.children[rank].fd = -1;
        run.children[rank].report.max_bytes = options->max_result_bytes;
    }
    BL_TRY_GOTO(st, take_signals(&run, err), out);
    st = run_all(&run, fn, user, polled, err);
    give_signals_back(&run);
out:
    free(polled);
    free(run.children);
    return st;
}

void bl_rank_ends_free(bl_rank_end *ends, int n_ranks) {
    for (int rank = 0; rank < n_ranks; rank++) {
        free(ends[rank].result);
        ends[rank].result = NULL;
        ends[rank].result_bytes = 0;
    }
}
