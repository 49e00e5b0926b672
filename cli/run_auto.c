#include "cli/run_auto.h"

#include "cli/controller.h"
#include "core/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define START_S 60.0

struct bl_run_auto {
    bl_controller_options options;
    atomic_bool stop;
    bool started;
    pthread_t thread;
    bl_status status;
    bl_error error;
};

bl_status bl_run_auto_open(const char *socket, double rest_s, bl_run_auto **out, bl_error *err) {
    bl_run_auto *a;
    BL_TRY(BL_CALLOC(a, 1, err));
    a->options = BL_CONTROLLER_OPTIONS_INIT;
    a->options.socket = socket;
    a->options.policy.rest_s = rest_s;
    a->options.patience_s = START_S;
    a->options.quiet = true;
    a->options.out = stderr;
    a->error = BL_ERROR_INIT;
    atomic_init(&a->stop, false);
    *out = a;
    return BL_OK;
}

static void *thread_main(void *user) {
    bl_run_auto *a = user;
    a->status = bl_controller_run(&a->options, &a->stop, &a->error);
    return NULL;
}

void bl_run_auto_start(bl_run_auto *a) {
    sigset_t all, before;
    if (a == NULL || a->started)
        return;
    sigfillset(&all); /* signals are for the thread that is here already */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    a->started = pthread_create(&a->thread, NULL, thread_main, a) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!a->started)
        a->status = bl_fail(&a->error, BL_ERR_NOMEM, "cannot start its thread");
}

void bl_run_auto_close(bl_run_auto *a, bool tell) {
    if (a == NULL)
        return;
    atomic_store(&a->stop, true);
    if (a->started)
        pthread_join(a->thread, NULL);
    if (tell && a->status < 0 && a->status != BL_ERR_PEER && a->status != BL_ERR_ABORTED) {
        char text[1024];
        bl_error_format(&a->error, text, sizeof text);
        fprintf(stderr, "ballast run: rebalancing ended: %s\n", text);
    }
    free(a);
}
