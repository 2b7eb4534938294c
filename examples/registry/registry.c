/* examples/registry/registry.c - servers that are found by what they offer, and missed when they die.
 *
 *     registry                             in a directory of this machine
 *     registry redis://192.0.2.7           in a Redis server; or any other registry
 *
 * Two processes offer the service "greet", one of them busier than the other. A client watches the service, and asks whoever is
 * there and has the least to do. Then that one is killed: the client is told, and asks the other. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/registry.h>
#include <weft/weft.h>

enum { TAG_QUESTION = 1, TAG_ANSWER = 2, SERVERS = 2 };

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 20 * WEFT_SECOND))

/* --- a server --------------------------------------------------------------------------------------------------------- */

static void answer(weft_listener_t *listener, const char *name)
{
    weft_op_t op = WEFT_OP_INIT;
    char question[64];
    MUST(weft_listener_accept(listener, &op));
    MUST(weft_op_wait(&op, WEFT_FOREVER));
    weft_ep_t *ep = weft_op_ep(&op);
    MUST(weft_msg_recv(ep, question, sizeof question, TAG_QUESTION, WEFT_TAG_FULL, &op));
    WAIT(op);
    MUST(weft_msg_send(ep, name, strlen(name) + 1, TAG_ANSWER, &op));
    WAIT(op);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
}

static void serve(const char *uri, const char *name, uint32_t load)
{
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_registry_t *registry;
    weft_registry_opts_t opts = WEFT_REGISTRY_OPTS_INIT;
    weft_entry_t entry = WEFT_ENTRY_INIT;
    weft_op_t op = WEFT_OP_INIT;

    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    opts.lease_ns = 2 * WEFT_SECOND; /* a place that only time tells of our death waits for so long */
    MUST(weft_registry_open(rt, uri, &opts, &registry));

    entry.service = "greet";
    entry.instance = name; /* NULL: weft_registry_name() */
    entry.address = weft_listener_uri(listener);
    entry.load = load; /* of 1000 */
    MUST(weft_registry_enter(registry, &entry, &op));
    WAIT(op); /* others can find us now */
    for (;;)
        answer(listener, name);
}

/* --- the client ------------------------------------------------------------------------------------------------------- */

typedef struct known {
    unsigned n;
    struct {
        char name[64], address[512];
        uint32_t load;
    } at[16];
} known_t;

static void changed(weft_change_t change, const weft_entry_t *entry, void *user)
{
    known_t *k = user;
    unsigned i = 0;
    while (i < k->n && strcmp(k->at[i].name, entry->instance) != 0)
        i++;
    printf("%s %s\n", entry->instance, change == WEFT_CAME ? "came" : change == WEFT_CHANGED ? "changed" : "went");
    if (change == WEFT_WENT) {
        k->at[i] = k->at[--k->n];
    } else if (i < sizeof k->at / sizeof *k->at) {
        snprintf(k->at[i].name, sizeof k->at[i].name, "%s", entry->instance);
        snprintf(k->at[i].address, sizeof k->at[i].address, "%s", entry->address);
        k->at[i].load = entry->load;
        k->n += i == k->n;
    }
}

/* Ask whoever has the least to do; who that was. */
static void ask(weft_runtime_t *rt, const known_t *k, char who[64])
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    unsigned best = 0;
    for (unsigned i = 1; i < k->n; i++)
        if (k->at[i].load < k->at[best].load)
            best = i;
    MUST(weft_ep_open(rt, k->at[best].address, NULL, NULL, &ep));
    MUST(weft_msg_send(ep, "who is there?", 14, TAG_QUESTION, &op));
    WAIT(op);
    MUST(weft_msg_recv(ep, who, 64, TAG_ANSWER, WEFT_TAG_FULL, &op));
    WAIT(op);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    printf("%s answers\n", who);
}

static void drive_until(weft_runtime_t *rt, const known_t *k, unsigned n)
{
    for (int i = 0; k->n != n; i++) {
        weft_runtime_progress(rt);
        usleep(1000);
        if (i == 20000) {
            fprintf(stderr, "there are %u servers, not %u\n", k->n, n);
            exit(1);
        }
    }
}

static void use(const char *uri, const pid_t servers[SERVERS])
{
    weft_runtime_t *rt;
    weft_registry_t *registry;
    weft_watch_t *watch;
    weft_op_t op = WEFT_OP_INIT;
    static known_t known;
    char who[64];

    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_registry_open(rt, uri, NULL, &registry));
    MUST(weft_registry_watch(registry, "greet", changed, &known, &watch));
    drive_until(rt, &known, SERVERS);
    ask(rt, &known, who);

    kill(servers[strcmp(who, "idle") == 0], SIGKILL);
    drive_until(rt, &known, SERVERS - 1);
    ask(rt, &known, who);

    MUST(weft_registry_close(registry, &op)); /* ends the watch, and takes away what we entered */
    WAIT(op);
    MUST(weft_runtime_close(rt));
}

/* --- all of them ------------------------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    char folder[] = "/tmp/weft-example-XXXXXX", uri[512];
    static const char *const names[SERVERS] = {"busy", "idle"};
    pid_t servers[SERVERS];
    if (argc < 2 && !mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(uri, sizeof uri, "%s%s", argc < 2 ? "dir://" : argv[1], argc < 2 ? folder : "");
    for (int i = 0; i < SERVERS; i++) {
        servers[i] = fork(); /* before any runtime is open here */
        if (servers[i] == 0) {
            alarm(60); /* an example does not live on if it is killed */
            serve(uri, names[i], i ? 10 : 900);
        }
    }
    pid_t client = fork();
    if (client == 0) {
        use(uri, servers);
        return 0;
    }
    int status = 0, good = waitpid(client, &status, 0) == client && WIFEXITED(status) && !WEXITSTATUS(status);
    for (int i = 0; i < SERVERS; i++) {
        kill(servers[i], SIGKILL);
        waitpid(servers[i], NULL, 0);
    }
    if (argc < 2) {
        char file[600];
        snprintf(file, sizeof file, "%s/greet@busy", folder); /* the last one was killed too */
        unlink(file);
        rmdir(folder);
    }
    return good ? 0 : 1;
}
