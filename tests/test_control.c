/* The control socket: what operators may ask, and what hostile clients cannot do. Server and clients
 * are one thread: nothing here may wait for the other side. */
#include "tests/support/support.h"

#include "core/io.h"
#include "core/mem.h"
#include "rebalancer/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 2, EXPERTS = 4, SLOTS = 3, BUNDLE = 64 };

/* Rank 0 of two; rank 1 never answers, which is all that is needed here. */
typedef struct fixture {
    bl_transport *handles[RANKS];
    bl_store *store;
    bl_agent *agent;
    bl_control *control;
    const char *path;
} fixture;

static fixture f;

static const bl_control_cluster cluster = {
    .n_experts = EXPERTS, .top_k = 2, .n_ranks = RANKS, .rule = "even", .plan_epoch = 4};

static int set_up(void **state) {
    (void)state;
    bl_error err;
    bl_placement initial;
    const int layers[] = {1, 3}, slots[] = {SLOTS, SLOTS};
    const bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    assert_ok(bl_placement_create(RANKS, EXPERTS, layers, 2, slots, &initial, &err));
    const int32_t experts[] = {0, 1, 2, 2, 3, 0};
    for (int l = 0; l < 2; l++)
        memcpy(initial.layers[l].expert, experts, sizeof experts);
    assert_ok(bl_transport_local_open(RANKS, f.handles, &err));
    assert_ok(bl_store_create(&initial, 0, BUNDLE, 1, &f.store, &err));
    assert_ok(bl_agent_create(f.store, f.handles[0], layers, 2, &options, &f.agent, &err));
    f.path = bl_test_temp("control.sock");
    assert_ok(bl_control_open(f.path, &cluster, &f.control, &err));
    bl_placement_free(&initial);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    bl_control_close(f.control, f.agent);
    bl_agent_free(f.agent);
    bl_store_free(f.store);
    for (int g = 0; g < RANKS; g++)
        bl_transport_close(f.handles[g]);
    f = (fixture){0};
    return 0;
}

static void poll_server(int times) {
    for (int i = 0; i < times; i++)
        bl_control_poll(f.control, f.agent);
}

static int dial(void) {
    bl_error err;
    bl_control_client client;
    assert_ok(bl_control_connect(f.path, &client, &err));
    fcntl(client.fd, F_SETFL, fcntl(client.fd, F_GETFL) | O_NONBLOCK);
    poll_server(1);
    return client.fd;
}

static void say(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* What the server has sent so far: a text, "" when nothing, NULL when it has hung up. */
static const char *hear(int fd) {
    static char text[1 << 16];
    const ssize_t n = recv(fd, text, sizeof text - 1, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? "" : NULL;
    text[n] = '\0';
    return n > 0 ? text : NULL;
}

static json_t *ask(const char *request) {
    bl_error err;
    json_t *answer;
    const int fd = dial();
    say(fd, request);
    say(fd, "\n");
    poll_server(3);
    const char *text = hear(fd);
    assert_non_null(text);
    assert_ok(bl_json_parse(text, strlen(text), "answer", &answer, &err));
    close(fd);
    return answer;
}

static void refuses(const char *request, const char *code, const char *part) {
    json_t *answer = ask(request), *body = json_object_get(answer, "error");
    assert_true(json_is_false(json_object_get(answer, "ok")));
    assert_string_equal(json_string_value(json_object_get(body, "code")), code);
    bl_test_has(json_string_value(json_object_get(body, "message")), part);
    json_decref(answer);
}

static long long number(const json_t *answer, const char *key) {
    return (long long)json_integer_value(json_object_get(answer, key));
}

/* ---- requests -------------------------------------------------------------------------------- */

static const char *plan_with(const char *experts, int ranks, int epoch, const char *rule,
                             const char *slots) {
    static char text[2048];
    snprintf(text, sizeof text,
             "{\"op\":\"apply\",\"plan\":{\"format\":\"ballast-plan\",\"version\":1,\"model\":{"
             "\"name\":\"m\",\"experts\":%s,\"top_k\":2},\"ranks\":%d,\"epoch\":%d,\"layers\":[{"
             "\"layer\":3,\"slots\":%s,\"split\":{\"rule\":\"%s\"}}]}}",
             experts, ranks, epoch, slots, rule);
    return text;
}

#define IN_FORCE "[[2,1,0],[0,3,2]]" /* the same sets, in another order */
#define OTHER "[[0,1,3],[2,3,1]]"

static void test_status(void **state) {
    (void)state;
    json_t *answer = ask("{\"op\":\"status\"}");
    assert_true(json_is_true(json_object_get(answer, "ok")));
    assert_string_equal(json_string_value(json_object_get(answer, "state")), "stable");
    assert_string_equal(json_string_value(json_object_get(answer, "outcome")), "none");
    assert_int_equal(number(answer, "epoch"), 4);
    assert_true(json_is_null(json_object_get(answer, "layer")));
    json_decref(answer);
    answer = ask("{\"op\":\"status\",\"wait\":true}"); /* nothing to wait for */
    assert_true(json_is_true(json_object_get(answer, "ok")));
    json_decref(answer);
}

static void test_plans_that_are_refused(void **state) {
    (void)state;
    refuses(plan_with("5", 2, 0, "even", "[[0,1,3],[2,4,1]]"), "ERR_MODEL",
            "the plan is for 5 experts, top-2; the running model has 4");
    refuses(plan_with("4", 3, 0, "even", "[[0,1],[2,3],[1]]"), "ERR_SHAPE",
            "the plan is for 3 ranks, 2 are running");
    refuses(plan_with("4", 2, 0, "fractions", OTHER), "ERR_UNSUPPORTED", "the rule fractions");
    refuses(plan_with("4", 2, 0, "even", "[[0,1],[2,3]]"), "ERR_SHAPE",
            "rank 0 has 3 slots, the plan fills 2");
    refuses(plan_with("4", 2, 0, "even", "[[0,1,0],[2,3,1]]"), "ERR_INFEASIBLE", "holds it twice");
    refuses(plan_with("4", 2, 0, "even", "[[0,1,2],[2,1,0]]"), "ERR_INFEASIBLE",
            "expert 3 has no slot");
    refuses(plan_with("4", 2, 4, "even", OTHER), "ERR_STATE",
            "the plan is stale: it follows epoch 3");
    refuses(plan_with("4", 2, 6, "even", OTHER), "ERR_STATE", "in force is epoch 4");
    refuses("{\"op\":\"abort\"}", "ERR_STATE", "no move is under way");
}

static void test_plan_in_force_is_no_move(void **state) {
    (void)state;
    json_t *answer = ask(plan_with("4", 2, 1, "even", IN_FORCE)); /* even when it is old */
    assert_true(json_is_true(json_object_get(answer, "ok")));
    assert_int_equal(number(answer, "moves"), 0);
    assert_int_equal(number(answer, "move"), 0);
    json_decref(answer);
    assert_false(bl_agent_is_busy(f.agent));
}

static void test_dry_run_and_apply(void **state) {
    (void)state;
    char request[2100];
    const char *plan = plan_with("4", 2, 5, "even", OTHER);
    snprintf(request, sizeof request, "{\"dry_run\":true,%s", plan + 1);
    json_t *answer = ask(request);
    assert_int_equal(number(answer, "moves"), 2); /* 3 to rank 0, 1 to rank 1 */
    assert_int_equal(number(answer, "bytes"), 2 * BUNDLE);
    assert_int_equal(number(answer, "waves"), 1);
    const json_t *wave = json_array_get(json_object_get(answer, "schedule"), 0);
    assert_int_equal(number(wave, "layer"), 3);
    assert_int_equal(json_array_size(json_object_get(wave, "moves")), 2);
    json_decref(answer);
    assert_false(bl_agent_is_busy(f.agent));

    answer = ask(plan);
    assert_int_equal(number(answer, "moves"), 2);
    assert_int_equal(number(answer, "move"), 1);
    json_decref(answer);
    assert_true(bl_agent_is_busy(f.agent));
    refuses(plan, "ERR_STATE", "another move is under way");
    answer = ask("{\"op\":\"status\"}");
    assert_string_equal(json_string_value(json_object_get(answer, "outcome")), "running");
    json_decref(answer);
    const int waiting = dial();
    say(waiting, "{\"op\":\"status\",\"wait\":true}\n");
    poll_server(3);
    assert_string_equal(hear(waiting), "");
    answer = ask("{\"op\":\"abort\"}");
    assert_true(json_is_true(json_object_get(answer, "ok")));
    json_decref(answer);
    poll_server(1);
    bl_error err;
    assert_ok(bl_agent_at_step(f.agent, 1, &err)); /* hears its own abort */
    poll_server(1);
    const char *last = hear(waiting);
    assert_non_null(last);
    bl_test_has(last, "\"outcome\":\"aborted\",\"reason\":\"aborted by the operator\"");
    close(waiting);
}

static void test_look(void **state) {
    (void)state;
    json_t *answer = ask("{\"op\":\"look\",\"placement\":true}");
    const json_t *layers = json_object_get(answer, "layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_int_equal(number(json_array_get(layers, 1), "layer"), 3);
    assert_int_equal(number(answer, "bundle_bytes"), BUNDLE);
    assert_int_equal(number(answer, "spares"), 1);
    assert_true(json_is_null(json_object_get(answer, "window"))); /* nothing was measured */
    assert_int_equal(json_array_size(json_object_get(answer, "living")), RANKS);
    json_decref(answer);
    refuses("{\"op\":\"look\",\"window\":-1}", "ERR_RANGE", "window");
}

static void test_drain(void **state) {
    (void)state;
    json_t *answer = ask("{\"op\":\"drain\"}");
    assert_true(json_is_true(json_object_get(answer, "drained")));
    assert_int_equal(json_array_size(json_object_get(answer, "layers")), 2);
    json_decref(answer);
    refuses(plan_with("4", 2, 5, "even", OTHER), "ERR_STATE", "the cluster is drained by process");
    assert_false(bl_agent_is_busy(f.agent));
    json_decref(ask("{\"op\":\"drain\",\"release\":true}"));
    answer = ask(plan_with("4", 2, 5, "even", OTHER));
    assert_int_equal(number(answer, "move"), 1);
    json_decref(answer);
}

/* With a journal: a move starts when its record is on the disk, and says who asked; on a full disk
 * none starts. */
static void test_journal(void **state) {
    (void)state;
    bl_error err;
    bl_journal_past past;
    struct rlimit limit;
    bl_control_cluster with = cluster;
    char *text;
    size_t bytes;
    const struct timespec pause = {0, 2000000};
    const char *path = bl_test_temp("control.journal");
    unlink(path);
    assert_ok(bl_journal_open(path, NULL, &past, &with.journal, &err));
    bl_control_close(f.control, f.agent);
    assert_ok(bl_control_open(f.path, &with, &f.control, &err));

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit full = {.rlim_cur = 8, .rlim_max = limit.rlim_max};
    for (int disk = 0; disk < 2; disk++) { /* full, then not */
        assert_int_equal(setrlimit(RLIMIT_FSIZE, disk == 0 ? &full : &limit), 0);
        const int fd = dial();
        say(fd, plan_with("4", 2, 5, "even", OTHER));
        say(fd, "\n");
        const char *answer = "";
        for (int i = 0; i < 2000 && answer[0] == '\0'; i++) {
            poll_server(1);
            nanosleep(&pause, NULL);
            answer = hear(fd);
        }
        bl_test_has(answer, disk == 0 ? "the journal cannot be written" : "\"move\":1");
        assert_true(bl_agent_is_busy(f.agent) == (disk == 1));
        close(fd);
    }
    bl_control_close(f.control, f.agent);
    f.control = NULL;
    bl_journal_close(with.journal);
    assert_ok(bl_read_file(path, 1 << 16, &text, &bytes, &err));
    char who[64];
    snprintf(who, sizeof who, "\"by\":{\"pid\":%ld,\"uid\":%ld}", (long)getpid(), (long)getuid());
    bl_test_has(text, who);
    bl_test_has(text, "\"what\":\"begin\"");
    free(text);
}

static void test_malformed_requests(void **state) {
    (void)state;
    refuses("", "ERR_PARSE", "");
    refuses("{", "ERR_PARSE", "");
    refuses("[]", "ERR_PARSE", "a request is a JSON object");
    refuses("{\"op\":5}", "ERR_PARSE", "op");
    refuses("{\"op\":\"exec\"}", "ERR_USAGE", "unknown op \"exec\"");
    refuses("{\"op\":\"apply\"}", "ERR_PARSE", "plan");
    refuses("{\"op\":\"apply\",\"plan\":{\"format\":\"ballast-plan\",\"version\":2}}",
            "ERR_VERSION", "version 2");
    refuses("{\"op\":\"status\",\"op\":\"abort\"}", "ERR_PARSE", "");
}

/* ---- clients that mean no good --------------------------------------------------------------- */

static void test_pieces_and_several_requests(void **state) {
    (void)state;
    const int fd = dial();
    say(fd, "{\"op\":\"sta");
    poll_server(2);
    assert_string_equal(hear(fd), "");
    say(fd, "tus\"}\n{\"op\":\"nonsense\"}\n");
    poll_server(1);
    bl_test_has(hear(fd), "\"state\":\"stable\"");
    poll_server(1);
    bl_test_has(hear(fd), "unknown op");
    close(fd);
    poll_server(2);
}

/* A long request is read by a thread of its own, also when its client does not wait for it. */
static void test_long_requests(void **state) {
    (void)state;
    enum { PAD = 300000 };
    char *request = malloc(PAD + 100);
    assert_non_null(request);
    strcpy(request, "{\"op\":\"status\",\"pad\":[");
    size_t n = strlen(request);
    while (n < PAD)
        n += (size_t)sprintf(request + n, "0,");
    strcpy(request + n, "0]}\n");
    for (int i = 0; i < 6; i++) {
        const int fd = dial();
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        for (size_t at = 0; at < strlen(request); at += 50000) {
            const size_t left = strlen(request) - at;
            assert_true(send(fd, request + at, left < 50000 ? left : 50000, MSG_NOSIGNAL) > 0);
            poll_server(1);
        }
        poll_server(2);
        for (int tries = 0; i % 2 == 0 && tries < 50000; tries++) {
            struct pollfd one = {.fd = fd, .events = POLLIN};
            poll_server(1);
            if (poll(&one, 1, 1) > 0)
                break;
        }
        if (i % 2 == 0)
            bl_test_has(hear(fd), "\"state\":\"stable\"");
        close(fd);
        poll_server(1);
    }
    free(request);
}

static void test_endless_line_is_dropped(void **state) {
    (void)state;
    const size_t piece_bytes = 1 << 20;
    char *piece = malloc(piece_bytes);
    assert_non_null(piece);
    memset(piece, 'x', piece_bytes);
    const int fd = dial();
    size_t sent = 0;
    int failures = 0;
    while (sent < 4 * BL_CONTROL_MAX_REQUEST && failures < 100) {
        const ssize_t n = send(fd, piece, piece_bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EPIPE)
            break;
        sent += n > 0 ? (size_t)n : 0;
        failures = n > 0 ? 0 : failures + 1;
        poll_server(4);
    }
    assert_true(sent > BL_CONTROL_MAX_REQUEST && sent < BL_CONTROL_MAX_REQUEST + (2 << 20));
    free(piece);
    close(fd);
    json_t *answer = ask("{\"op\":\"status\"}");
    assert_true(json_is_true(json_object_get(answer, "ok")));
    json_decref(answer);
}

/* Asks and asks and never listens: the server keeps one answer for it and looks at no more. */
static void test_client_that_does_not_read(void **state) {
    (void)state;
    const int fd = dial();
    for (int i = 0; i < 20000; i++) {
        if (send(fd, "{\"op\":\"status\"}\n", 16, MSG_NOSIGNAL) != 16)
            break;
        poll_server(1);
    }
    json_t *answer = ask("{\"op\":\"status\"}");
    assert_true(json_is_true(json_object_get(answer, "ok")));
    json_decref(answer);
    close(fd);
    poll_server(2);
}

static void test_many_clients(void **state) {
    (void)state;
    int fds[40];
    for (int i = 0; i < 40; i++)
        fds[i] = dial();
    say(fds[39], "{\"op\":\"status\"}\n");
    poll_server(2);
    say(fds[1], "{\"op\":\"status\"}\n"); /* it has its place, and is heard */
    poll_server(2);
    bl_test_has(hear(fds[1]), "stable");
    nanosleep(&(struct timespec){1, 100000000}, NULL);
    poll_server(2);
    bl_test_has(hear(fds[39]), "stable");
    assert_null(hear(fds[0])); /* the silent make room */
    for (int i = 0; i < 40; i++)
        close(fds[i]);
    poll_server(2);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void test_socket_is_private_and_single(void **state) {
    (void)state;
    bl_error err;
    struct stat info;
    bl_control *second;
    assert_int_equal(stat(f.path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_fails(bl_control_open(f.path, &cluster, &second, &err), BL_ERR_STATE,
                 "a running cluster answers there already");
    assert_fails(bl_control_open(bl_test_write("plain", "text"), &cluster, &second, &err),
                 BL_ERR_STATE, "is no socket");
    char text[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_fails(bl_control_open(text, &cluster, &second, &err), BL_ERR_RANGE, "bytes, this one");
    assert_fails(bl_control_open("/nowhere/at/all", &cluster, &second, &err), BL_ERR_IO,
                 "cannot open the socket");
}

/* A process that was stopped, and is lost, goes on holding its socket: its successor knows it by its
 * number. */
static void test_a_lost_server_is_replaced(void **state) {
    (void)state;
    bl_error err;
    struct stat info;
    bl_control *first, *second;
    char path[512];
    snprintf(path, sizeof path, "%s.3", f.path);
    bl_control_cluster successor = cluster;
    assert_ok(bl_control_open(path, &cluster, &first, &err));
    successor.replaces_pid = (int64_t)getpid() + 1;
    assert_fails(bl_control_open(path, &successor, &second, &err), BL_ERR_STATE,
                 "a running cluster answers there already");
    successor.replaces_pid = (int64_t)getpid();
    assert_ok(bl_control_open(path, &successor, &second, &err));
    bl_control_close(first, NULL); /* awake again: it does not take the other's away */
    assert_int_equal(stat(path, &info), 0);
    bl_control_close(second, NULL);
    assert_int_equal(stat(path, &info), -1);
}

static void test_stale_socket_is_replaced(void **state) {
    (void)state;
    bl_error err;
    bl_control *second;
    char path[512];
    snprintf(path, sizeof path, "%s.2", f.path);
    assert_ok(bl_control_open(path, &cluster, &second, &err));
    assert_int_equal(rename(path, bl_test_temp("moved.sock")), 0);
    bl_control_close(second, NULL); /* finds nothing to remove */
    assert_int_equal(rename(bl_test_temp("moved.sock"), path), 0);
    assert_ok(bl_control_open(path, &cluster, &second, &err));
    bl_control_close(second, NULL);
    assert_int_equal(access(path, F_OK), -1);
}

/* Many processes find one leftover at the same moment: one serves it, the others are told so. */
static void test_starters_at_once(void **state) {
    (void)state;
    enum { STARTERS = 12, ROUNDS = 8 };
    char path[512], lock[520];
    snprintf(path, sizeof path, "%s.3", f.path);
    snprintf(lock, sizeof lock, "%s.lock", path);
    for (int round = 0; round < ROUNDS; round++) {
        bl_error err;
        bl_control *left;
        int gate[2], told[2], served = 0, refused = 0;
        pid_t starters[STARTERS];
        assert_ok(bl_control_open(path, &cluster, &left, &err));
        assert_int_equal(rename(path, bl_test_temp("left.sock")), 0);
        bl_control_close(left, NULL);
        assert_int_equal(rename(bl_test_temp("left.sock"), path), 0);
        assert_int_equal(pipe(gate) | pipe(told), 0);
        for (int i = 0; i < STARTERS; i++) {
            starters[i] = fork();
            if (starters[i] != 0)
                continue;
            char byte;
            bl_control *mine = NULL;
            close(gate[1]);
            if (read(gate[0], &byte, 1) != 0)
                _exit(2);
            byte = bl_control_open(path, &cluster, &mine, NULL) >= 0 ? 's' : 'r';
            if (write(told[1], &byte, 1) != 1 || byte == 'r')
                _exit(0);
            pause(); /* serve until killed, and leave the socket behind */
        }
        close(gate[0]);
        close(gate[1]); /* off */
        for (int i = 0; i < STARTERS; i++) {
            char byte = 0;
            assert_int_equal(read(told[0], &byte, 1), 1);
            served += byte == 's';
            refused += byte == 'r';
        }
        for (int i = 0; i < STARTERS; i++) {
            kill(starters[i], SIGKILL);
            waitpid(starters[i], NULL, 0);
        }
        close(told[0]);
        close(told[1]);
        assert_int_equal(served, 1);
        assert_int_equal(refused, STARTERS - 1);
        assert_int_equal(access(lock, F_OK), -1);
        assert_int_equal(unlink(path), 0); /* the server's own, not removed by a late starter */
    }
}

/* Killed, its parent has been told, and its memory is being torn down: its socket still answers. */
static void test_a_dying_server_is_awaited(void **state) {
    (void)state;
    bl_error err;
    bl_control *control;
    char path[512], byte;
    int ready[2], how;
    snprintf(path, sizeof path, "%s.4", f.path);
    assert_int_equal(pipe(ready), 0);
    const pid_t server = fork();
    if (server == 0) {
        if (bl_control_open(path, &cluster, &control, &err) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        nanosleep(&(struct timespec){0, 300000000}, NULL);
        _exit(0);
    }
    bl_control_cluster starting = cluster;
    starting.starts = true;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_fails(bl_control_open(path, &cluster, &control, &err), BL_ERR_STATE,
                 "a running cluster answers there already"); /* in the middle of serving: at once */
    assert_ok(bl_control_open(path, &starting, &control, &err));
    bl_control_close(control, NULL);
    assert_int_equal(waitpid(server, &how, 0), server);
    assert_int_equal(how, 0);
    close(ready[0]);
    close(ready[1]);
}

static void test_socket_of_another_run_stays(void **state) {
    (void)state;
    bl_error err;
    bl_control *second;
    assert_int_equal(unlink(f.path), 0); /* somebody took it for a leftover */
    assert_ok(bl_control_open(f.path, &cluster, &second, &err));
    bl_control_close(f.control, f.agent);
    f.control = NULL;
    assert_int_equal(access(f.path, F_OK), 0);
    bl_control_sweep(f.path); /* it is served */
    assert_int_equal(access(f.path, F_OK), 0);
    bl_control_close(second, NULL);
    assert_int_equal(access(f.path, F_OK), -1);
}

static void test_last_words(void **state) {
    (void)state;
    bl_error err;
    bl_control_client client;
    json_t *answer, *status = json_pack("{s:s, s:b}", "op", "status", "wait", 1);
    assert_ok(bl_control_connect(f.path, &client, &err));
    poll_server(1);
    bl_control_close(f.control, f.agent);
    f.control = NULL;
    assert_ok(bl_control_ask(&client, status, 5, &answer, &err)); /* asked after the end */
    assert_true(json_is_true(json_object_get(answer, "ended")));
    json_decref(answer);
    assert_fails(bl_control_ask(&client, status, 5, &answer, &err), BL_ERR_PEER, "has ended");
    bl_control_disconnect(&client);
    assert_fails(bl_control_connect(f.path, &client, &err), BL_ERR_IO, "no cluster answers there");
    json_decref(status);
}

/* A server that stands still: its socket takes some of a long request, then nothing. */
static void test_server_that_stands_still(void **state) {
    (void)state;
    bl_error err;
    bl_control_client client;
    json_t *answer, *request = json_pack("{s:s}", "op", "apply");
    char *pad = calloc(4 << 20, 1);
    assert_non_null(pad);
    memset(pad, 'x', (4 << 20) - 1);
    json_object_set_new(request, "plan", json_string(pad));
    free(pad);
    assert_ok(bl_control_connect(f.path, &client, &err));
    assert_fails(bl_control_ask(&client, request, 0.1, &answer, &err), BL_ERR_TIMEOUT,
                 "does the cluster still step?");
    bl_control_disconnect(&client);
    json_decref(request);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_status),
        TEST(test_plans_that_are_refused),
        TEST(test_plan_in_force_is_no_move),
        TEST(test_dry_run_and_apply),
        TEST(test_look),
        TEST(test_drain),
        TEST(test_journal),
        TEST(test_malformed_requests),
        TEST(test_pieces_and_several_requests),
        TEST(test_long_requests),
        TEST(test_endless_line_is_dropped),
        TEST(test_client_that_does_not_read),
        TEST(test_many_clients),
        TEST(test_socket_is_private_and_single),
        TEST(test_a_lost_server_is_replaced),
        TEST(test_stale_socket_is_replaced),
        TEST(test_starters_at_once),
        TEST(test_a_dying_server_is_awaited),
        TEST(test_socket_of_another_run_stays),
        TEST(test_last_words),
        TEST(test_server_that_stands_still),
    };
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
