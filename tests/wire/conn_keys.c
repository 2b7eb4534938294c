/* tests/wire/conn_keys.c - keys between processes: each makes its key of what it was given, and only the same lets them talk.
 *
 * ctest: tls */
#include "ports.h"
#include "test.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <weft/weft.h>

#define HEX "8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0"
#define OTHER "8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef1"

typedef struct given {
    const char *text; /* what was typed, or is in the file */
    bool file;
    bool random;
} given_t;

static weft_runtime_t *open_with(const given_t *g)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    char path[64];
    snprintf(path, sizeof path, "conn_keys.%d", (int)getpid());
    if (g->file) {
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        CHECK_EQ(write(fd, g->text, strlen(g->text)), strlen(g->text));
        close(fd);
        setenv("WEFT_KEY_FILE", path, 1);
    } else {
        o.key = g->text;
        o.key_len = strlen(g->text);
        o.key_random = g->random;
    }
    weft_status_t st = weft_runtime_open(&o, &rt);
    unlink(path);
    CHECK_OK(st);
    return rt;
}

/* The other process: connects, and sends what comes back. Exit status 0: as expected. */
static void be_client(const given_t *g, int from, weft_status_t expected)
{
    char uri[256], word[8] = "";
    weft_op_t op = WEFT_OP_INIT, sent = WEFT_OP_INIT, got = WEFT_OP_INIT;
    weft_ep_t *ep;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    weft_log_set_level(WEFT_LOG_ERROR);
    CHECK_EQ(read(from, uri, sizeof uri), sizeof uri);
    weft_runtime_t *rt = open_with(g);
    CHECK_OK(weft_ep_open(rt, uri, NULL, &op, &ep));
    CHECK_EQ(weft_op_wait(&op, 60 * WEFT_SECOND), expected);
    if (!expected) {
        CHECK_OK(weft_msg_send(ep, "word", 5, 1, &sent));
        CHECK_OK(weft_msg_recv(ep, word, sizeof word, 2, WEFT_TAG_FULL, &got));
        CHECK_OK(weft_op_wait(&got, 60 * WEFT_SECOND));
        CHECK_STR(word, "word");
    }
    _exit(0);
}

static weft_ep_t *came;

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    came = ep;
}

static void between(given_t server, given_t client, weft_status_t expected)
{
    int fds[2], status = 1;
    char uri[256] = "", word[8];
    weft_op_t got = WEFT_OP_INIT, sent = WEFT_OP_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *l;
    bool receives = false, sends = false;
    came = NULL;
    CHECK(!pipe(fds));
    fflush(NULL);
    pid_t kid = fork();
    if (!kid)
        be_client(&client, fds[0], expected);
    weft_log_set_level(WEFT_LOG_ERROR);
    weft_runtime_t *rt = open_with(&server);
    lo.accept = accepted;
    CHECK_OK(weft_listen(rt, ports_tcp(), &lo, &l));
    snprintf(uri, sizeof uri, "%s", weft_listener_uri(l));
    CHECK_EQ(write(fds[1], uri, sizeof uri), sizeof uri);
    while (waitpid(kid, &status, WNOHANG) == 0) {
        weft_runtime_progress(rt);
        if (came && !receives) {
            CHECK_OK(weft_msg_recv(came, word, sizeof word, 1, WEFT_TAG_FULL, &got));
            receives = true;
        }
        if (receives && !sends && weft_op_done(&got)) {
            CHECK_OK(weft_msg_send(came, word, 5, 2, &sent));
            sends = true;
        }
    }
    CHECK_EQ(status, 0);
    CHECK_EQ(came != NULL, !expected);
    CHECK_OK(weft_runtime_close(rt));
    close(fds[0]);
    close(fds[1]);
}

TEST(processes_with_the_same_typed_key_talk)
{
    between((given_t){"typed by a person", false, false}, (given_t){"typed by a person", false, false}, WEFT_OK);
    between((given_t){"typed by a person", false, false}, (given_t){"typed by a person", true, false}, WEFT_OK);
}

TEST(processes_with_other_typed_keys_do_not)
{
    between((given_t){"typed by a person", false, false}, (given_t){"typed by another", false, false}, WEFT_ERR_AUTH);
    between((given_t){"typed by a person", true, false}, (given_t){"typed by a person\n", true, false}, WEFT_ERR_AUTH);
}

TEST(a_random_key_is_the_same_from_a_file_from_text_and_from_bytes)
{
    static const char bytes[] = "exactly thirty-two random bytes."; /* of which the hex digits are: */
    char text[128] = "weft-key-1 ";
    for (size_t i = 0; i < 32; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%02X", (unsigned char)bytes[i]);
    between((given_t){text, true, false}, (given_t){text, false, false}, WEFT_OK);
    between((given_t){text, true, false}, (given_t){bytes, false, true}, WEFT_OK);
    between((given_t){text, true, false}, (given_t){bytes, false, false}, WEFT_ERR_AUTH); /* counts as typed */
}

TEST(other_random_keys_do_not_talk)
{
    between((given_t){"weft-key-1 " HEX "\n", true, false}, (given_t){"weft-key-1 " OTHER "\n", true, false}, WEFT_ERR_AUTH);
}
