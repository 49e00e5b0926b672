/* slow_link DEVICE_A DEVICE_B MILLISECONDS: a cable whose frames take that long each way, for kernels
 * without netem. Makes two TAP devices in the network namespace it runs in, says "ready", and carries
 * frames between them until it is killed; either may then be moved to another namespace. */
#include "core/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_FRAME 2048
#define MAX_FRAMES 4096 /* under way in one direction; more are lost, as in a switch */

typedef struct frame {
    double due_s;
    ssize_t bytes;
    unsigned char data[MAX_FRAME];
} frame;

/* One direction: a ring, since all frames take equally long. */
typedef struct way {
    int from, to;
    size_t first, n;
    frame frames[MAX_FRAMES];
} way;

static int make_tap(const char *name) {
    struct ifreq request;
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memset(&request, 0, sizeof request);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0)
        return fd;
    fprintf(stderr, "slow_link: cannot make %s: %s\n", name, strerror(errno));
    exit(1);
}

static void take(way *w, double delay_s) {
    static unsigned char rest[MAX_FRAME];
    for (;;) {
        const bool room = w->n < MAX_FRAMES;
        frame *f = &w->frames[(w->first + w->n) % MAX_FRAMES];
        const ssize_t bytes = read(w->from, room ? f->data : rest, MAX_FRAME);
        if (bytes <= 0)
            return;
        if (!room)
            continue;
        f->bytes = bytes;
        f->due_s = bl_now_s() + delay_s;
        w->n++;
    }
}

/* A device that is down takes nothing: its frames are lost. Returns when the next one is due. */
static double give(way *w) {
    while (w->n > 0 && w->frames[w->first].due_s <= bl_now_s()) {
        const frame *f = &w->frames[w->first];
        if (write(w->to, f->data, (size_t)f->bytes) < 0 && errno == EBADFD)
            exit(0); /* the device has gone with its namespace */
        w->first = (w->first + 1) % MAX_FRAMES;
        w->n--;
    }
    return w->n > 0 ? w->frames[w->first].due_s : bl_now_s() + 1;
}

int main(int argc, char **argv) {
    static way ways[2];
    if (argc != 4) {
        fprintf(stderr, "usage: slow_link DEVICE_A DEVICE_B MILLISECONDS\n");
        return 2;
    }
    const double delay_s = atof(argv[3]) / 1e3;
    ways[0].from = ways[1].to = make_tap(argv[1]);
    ways[1].from = ways[0].to = make_tap(argv[2]);
    puts("ready");
    fclose(stdout);
    for (;;) {
        struct pollfd polled[2] = {{ways[0].from, POLLIN, 0}, {ways[1].from, POLLIN, 0}};
        double next_s = give(&ways[0]), other_s = give(&ways[1]);
        next_s = (other_s < next_s ? other_s : next_s) - bl_now_s();
        poll(polled, 2, next_s > 0 ? (int)(next_s * 1e3) + 1 : 0);
        if (((polled[0].revents | polled[1].revents) & (POLLERR | POLLHUP | POLLNVAL)) != 0)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        take(&ways[0], delay_s);
        take(&ways[1], delay_s);
    }
}
