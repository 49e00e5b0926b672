/*
 * peak_memory COMMAND...: run a command and print the most memory it had at once, in KiB (resident,
 * as the kernel counts it), as one line on standard error. Exits as the command did.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct rusage usage;
    int status = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: peak_memory COMMAND...\n");
        return 2;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || getrusage(RUSAGE_CHILDREN, &usage) != 0)
        return 1;
    fprintf(stderr, "peak memory: %ld KiB\n", usage.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
