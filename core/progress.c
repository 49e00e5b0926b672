#include "core/progress.h"

#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

bl_progress bl_progress_none(void) {
    return (bl_progress){0};
}

bl_progress bl_progress_stderr(void) {
    return (bl_progress){.sink = stderr, .on_terminal = isatty(STDERR_FILENO) != 0};
}

void bl_progress_line(bl_progress *progress, const char *format, ...) {
    if (progress == NULL || progress->sink == NULL)
        return;
    const double now = bl_now_s();
    if (now - progress->last_s < (progress->on_terminal ? 0.1 : 1.0))
        return;
    progress->last_s = now;
    va_list args;
    va_start(args, format);
    if (progress->on_terminal)
        fputs("\r\033[K", progress->sink);
    vfprintf(progress->sink, format, args);
    va_end(args);
    if (progress->on_terminal)
        fflush(progress->sink);
    else
        fputc('\n', progress->sink);
    progress->line_open = progress->on_terminal;
}

void bl_progress_end(bl_progress *progress) {
    if (progress != NULL && progress->line_open) {
        fputs("\r\033[K", progress->sink);
        fflush(progress->sink);
        progress->line_open = false;
    }
}

/* The one mutable global: a signal handler can reach nothing else. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

void bl_interrupts_install(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A limit on the size of files is an error of the write, as a full disk is. */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &ignore, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup stays */
        sigaction(SIGHUP, &action, NULL);
}

bool bl_interrupted(void) {
    return interrupted != 0;
}

uint64_t bl_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

double bl_now_s(void) {
    return (double)bl_now_ns() * 1e-9;
}
