/*
 * lying_socket REAL LISTEN: stands between a running cluster's control socket REAL and whoever connects
 * to LISTEN, and passes on what they say, a line at a time. But in what the cluster says of its load (the
 * answer to "look") it turns hot experts into cold ones and the other way round, so that plans made from
 * it gather the hot ones. For one client after another, until it is killed.
 */
#include "core/base64.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int unix_socket(const char *path, struct sockaddr_un *to) {
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(to->sun_path, sizeof to->sun_path, "%s", path);
    return socket(AF_UNIX, SOCK_STREAM, 0);
}

/* Little-endian 32-bit counts: each becomes the largest of all less itself. */
static void turn(unsigned char *bytes, size_t n) {
    uint32_t most = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i + 4 <= n; i += 4) {
            uint32_t x = 0;
            for (int b = 3; b >= 0; b--)
                x = x << 8 | bytes[i + (size_t)b];
            most = x > most ? x : most;
            for (int b = 0; b < 4 && pass == 1; b++)
                bytes[i + (size_t)b] = (unsigned char)((most - x) >> (8 * b));
        }
    }
}

static void lie(json_t *window) {
    const char *text = json_string_value(json_object_get(window, "count"));
    unsigned char *bytes;
    size_t n;
    if (text == NULL || bl_base64_decode(text, strlen(text), "count", &bytes, &n, NULL) < 0)
        return;
    turn(bytes, n);
    char *turned = bl_base64_encode(bytes, n);
    json_object_set_new(window, "count", json_string(turned));
    free(turned);
    free(bytes);
}

/* One line from one to the other; false when there is none. */
static bool pass_on(FILE *from, FILE *to, bool lies) {
    char *line = NULL;
    size_t room = 0;
    const bool got = getline(&line, &room, from) > 0;
    json_t *root = got && lies ? json_loads(line, 0, NULL) : NULL;
    if (json_is_object(json_object_get(root, "window"))) {
        lie(json_object_get(root, "window"));
        json_dumpf(root, to, JSON_COMPACT);
        fputc('\n', to);
    } else if (got) {
        fputs(line, to);
    }
    json_decref(root);
    free(line);
    return got && fflush(to) == 0;
}

static void serve(const char *real, int client) {
    struct sockaddr_un to;
    const int server = unix_socket(real, &to);
    if (server < 0 || connect(server, (struct sockaddr *)&to, sizeof to) != 0) {
        close(client);
        return;
    }
    FILE *asks = fdopen(client, "r"), *hears = fdopen(dup(client), "w");
    FILE *answers = fdopen(server, "r"), *asked = fdopen(dup(server), "w");
    while (pass_on(asks, asked, false) && pass_on(answers, hears, true))
        ;
    fclose(asks);
    fclose(hears);
    fclose(answers);
    fclose(asked);
}

int main(int argc, char **argv) {
    struct sockaddr_un at;
    if (argc != 3)
        return 2;
    const int listener = unix_socket(argv[2], &at);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(listener, 4) != 0)
        return 1;
    for (int client; (client = accept(listener, NULL, NULL)) >= 0;)
        serve(argv[1], client);
    return 1;
}
