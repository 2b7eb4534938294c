/* bench/element_read.c - reads of an element's memory through the C API, for bench/elements.py, which has the same reads from
 * Python beside it.
 *
 *     element_read TLS SIZE      a durl comes as a line on stdin; then for every line a number of reads:
 *                                prints the seconds each of them took
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft/elements.h>
#include <weft/weft.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void need(weft_status_t st)
{
    if (!st)
        return;
    fprintf(stderr, "element_read: %s (%s)\n", weft_status_text(st), weft_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    static char line[WEFT_DURL_MAX + 2];
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_action_t *action;
    weft_transport_t *trans;
    if (argc != 3 || !fgets(line, sizeof line, stdin))
        return 2;
    line[strcspn(line, "\n")] = 0;
    size_t size = strtoull(argv[2], NULL, 10);
    opts.progress = WEFT_PROGRESS_THREAD;
    opts.transports = argv[1];
    need(weft_runtime_open(&opts, &rt));
    need(weft_action_open(rt, "bench", NULL, &action));
    need(weft_action_add(action, line));
    line[strcspn(line, ";")] = 0;
    need(weft_action_get(action, line, "rdma", &trans));
    need(weft_transport_reg(trans, size, NULL));
    need(weft_transport_wait(trans, 10 * WEFT_SECOND));
    while (fgets(line, sizeof line, stdin)) {
        unsigned long n = strtoul(line, NULL, 10);
        for (unsigned long i = 0; i < n; i++) {
            weft_op_t op = WEFT_OP_INIT;
            double began = now();
            need(weft_transport_read(trans, size, 0, 0, &op));
            need(weft_op_wait(&op, WEFT_FOREVER));
            printf("%.9f ", now() - began);
        }
        puts("");
        fflush(stdout);
    }
    weft_action_close(action, NULL);
    weft_runtime_close(rt);
    return 0;
}
