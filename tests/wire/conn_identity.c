/* tests/wire/conn_identity.c - keys with names: several are accepted at once, the name is what the other side sees; a key that
 * is taken out of its file ends the connections of those who proved it, and no others.
 *
 * ctest: timeout=300 */
#include <fcntl.h>
#include <sys/stat.h>

#include "test.h"

#include <weft/weft.h>

#define A "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdefa"
#define B "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdefb"
#define C "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdefc"

enum { MOST = 4, LONG = 30 };

static weft_runtime_t *rts[MOST]; /* the first is the server */
static weft_listener_t *listener;
static weft_ep_t *came[8];
static int n_came;

static char *name_of(const char *file)
{
    static char names[4][96];
    static int next;
    char *name = names[next++ % 4];
    snprintf(name, sizeof names[0], "conn_identity.%d.%s", (int)getpid(), file);
    return name;
}

/* As somebody does it who replaces a file with care. */
static void put(const char *file, const char *text)
{
    char *path = name_of(file), *fresh = name_of("fresh");
    int fd = open(fresh, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    CHECK(!rename(fresh, path));
}

static void put_in_place(const char *file, const char *text)
{
    int fd = open(name_of(file), O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static weft_runtime_t *open_with(const char *file)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = "tcp";
    setenv("WEFT_KEY_FILE", name_of(file), 1);
    CHECK_OK(weft_runtime_open(&o, &rt));
    unsetenv("WEFT_KEY_FILE");
    for (int i = 0; i < MOST; i++)
        if (!rts[i]) {
            rts[i] = rt;
            break;
        }
    return rt;
}

static void drive(void)
{
    for (int i = 0; i < MOST; i++)
        if (rts[i])
            weft_runtime_progress(rts[i]);
}

#define UNTIL(cond) TEST_UNTIL((drive(), cond), LONG)

static void over(void)
{
    static const char *const files[] = {"server", "a", "b", "c", "fresh"};
    for (int i = MOST; i--;)
        if (rts[i])
            CHECK_OK(weft_runtime_close(rts[i]));
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        unlink(name_of(files[i]));
}

static int ended[2];
static weft_status_t ended_why[2];
static weft_on_failure_t answer;

static weft_on_failure_t failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)ep;
    ended[user != NULL]++;
    ended_why[user != NULL] = why;
    return answer;
}

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    came[n_came++] = ep;
}

static void serve(const char *scheme, const char *keys, weft_admit_peer_fn admit)
{
    char uri[64];
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {failed, NULL, NULL};
    put("server", keys);
    open_with("server");
    lo.accept = accepted;
    lo.hooks = &hooks;
    lo.admit_peer = admit;
    snprintf(uri, sizeof uri, "%s://127.0.0.1:0", scheme);
    CHECK_OK(weft_listen(rts[0], uri, &lo, &listener));
}

static weft_status_t call(const char *file, weft_ep_t **ep)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_runtime_t *rt = open_with(file);
    o.no_retry = true;
    o.hooks = (weft_ep_hooks_t){failed, NULL, &rts};
    CHECK_OK(weft_ep_open(rt, weft_listener_uri(listener), &o, &op, ep));
    UNTIL(weft_op_done(&op));
    return op.status;
}

static const char *identity(weft_ep_t *ep)
{
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    CHECK_OK(weft_ep_get_info(ep, &info));
    CHECK(info.authenticated);
    return info.identity;
}

static void two_keys_at_once(const char *scheme)
{
    weft_ep_t *a, *b, *c;
    weft_log_set_level(WEFT_LOG_ERROR);
    serve(scheme, "# of the mill\n" A " anna\n\n" B " bert\n", NULL);
    put("a", A "\n");
    put("b", B " of-his-own.name\n" C " another\n"); /* the first is proved; what he calls it is his affair */
    put("c", C "\n");
    CHECK_OK(call("a", &a));
    UNTIL(n_came == 1);
    CHECK_OK(call("b", &b));
    UNTIL(n_came == 2);
    CHECK_STR(identity(came[0]), "anna");
    CHECK_STR(identity(came[1]), "bert");
    CHECK_STR(identity(a), "");
    CHECK_STR(identity(b), "of-his-own.name");
    CHECK_EQ(call("c", &c), WEFT_ERR_AUTH);
    CHECK_EQ(n_came, 2);
    over();
}

static int said_up, said_lost;

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)level, (void)user;
    said_up += strstr(line, "it proved to be \"anna\"") != NULL;
    said_lost += strstr(line, "the key \"anna\" that the peer proved is no longer one of ours") != NULL;
}

TEST(the_log_says_who_came_and_who_was_thrown_out)
{
    weft_ep_t *a;
    weft_log_set_level(WEFT_LOG_INFO);
    weft_log_set_sink(sink, NULL);
    serve("tcp", A " anna\n" B " bert\n", NULL);
    put("a", A " of-his-own\n");
    CHECK_OK(call("a", &a));
    UNTIL(n_came == 1 && said_up == 1);
    CHECK_EQ(said_lost, 0);
    put("server", B " bert\n");
    UNTIL(said_lost > 0);
    weft_log_set_sink(NULL, NULL);
    weft_log_set_level(WEFT_LOG_ERROR);
    over();
}

TEST(several_keys_are_accepted_and_their_names_are_seen)
{
    two_keys_at_once("tcp");
}

TEST(several_keys_are_accepted_over_tls)
{
    two_keys_at_once("tls");
}

static void taken_out(const char *scheme)
{
    char buf[8];
    weft_ep_t *a, *b, *again;
    weft_op_t ra = WEFT_OP_INIT, rb = WEFT_OP_INIT, sent = WEFT_OP_INIT;
    weft_log_set_level(WEFT_LOG_ERROR);
    serve(scheme, A " anna\n" B " bert\n", NULL);
    put("a", A "\n");
    put("b", B "\n");
    CHECK_OK(call("a", &a));
    CHECK_OK(call("b", &b));
    UNTIL(n_came == 2);
    CHECK_OK(weft_msg_recv(came[0], buf, sizeof buf, 1, WEFT_TAG_FULL, &ra));
    CHECK_OK(weft_msg_recv(came[1], buf, sizeof buf, 1, WEFT_TAG_FULL, &rb));
    put("server", B " bert\n");
    double from = test_now();
    UNTIL(weft_op_done(&ra));
    printf("ended after %.2f s\n", test_now() - from);
    CHECK_EQ(ra.status, WEFT_ERR_AUTH);
    if (!strstr(weft_op_error(&ra), "\"anna\""))
        FAIL("%s", weft_op_error(&ra));
    UNTIL(ended[1] == 1 && ended[0] == 1); /* she is told, and nobody else */
    CHECK_EQ(ended_why[0], WEFT_ERR_AUTH);
    CHECK_EQ(call("a", &again), WEFT_ERR_AUTH);
    CHECK(!weft_op_done(&rb));
    CHECK_OK(weft_msg_send(b, "word", 5, 1, &sent));
    UNTIL(weft_op_done(&rb));
    CHECK_OK(rb.status);
    CHECK_STR(buf, "word");
    CHECK_EQ(n_came, 2);
    over();
}

TEST(a_key_that_is_taken_out_ends_its_connections_and_no_others)
{
    taken_out("tcp");
}

TEST(a_key_that_is_taken_out_ends_its_connections_over_tls)
{
    taken_out("tls");
}

static int n_told;

static void counts(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    n_told += level == WEFT_LOG_WARN && strstr(line, "key file") && !strstr(line, "8f01");
}

/* Long enough for several looks. */
static void several_looks(void)
{
    double end = test_now() + 1.0;
    while (test_now() < end)
        drive();
}

TEST(what_cannot_be_used_changes_nothing_and_is_told_of_once)
{
    static const char *const wrong[] = {"", "# nothing", "weft-key-1 8f01", A "\nweft-key-1 ", "text in place of a list of keys"};
    weft_ep_t *a, *b;
    weft_log_set_level(WEFT_LOG_WARN);
    weft_log_set_sink(counts, NULL);
    serve("tcp", A " anna\n", NULL);
    put("a", A "\n");
    put("b", B "\n");
    CHECK_OK(call("a", &a));
    UNTIL(n_came == 1);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put_in_place("server", wrong[i]);
        UNTIL(n_told == (int)i + 1);
        several_looks();
        CHECK_EQ(n_told, i + 1);
        CHECK_EQ(ended[0] + ended[1], 0);
    }
    unlink(name_of("server"));
    several_looks();
    CHECK_EQ(ended[0] + ended[1], 0);
    put("server", A " anna\n" B " bert\n"); /* now it is whole */
    double end = test_now() + LONG;
    weft_status_t st = WEFT_ERR_AUTH;
    for (; st && test_now() < end;) {
        weft_op_t op = WEFT_OP_INIT;
        if (!rts[2])
            open_with("b");
        CHECK_OK(weft_ep_open(rts[2], weft_listener_uri(listener), NULL, &op, &b));
        UNTIL(weft_op_done(&op));
        st = op.status;
        drive();
    }
    CHECK_OK(st);
    CHECK_EQ(ended[0] + ended[1], 0);
    over();
}

/* As docs/design/security.md says. */
TEST(a_key_is_exchanged_without_an_end_of_a_connection)
{
    weft_ep_t *first, *next;
    weft_log_set_level(WEFT_LOG_ERROR);
    serve("tcp", A " old\n", NULL);
    put("a", A "\n");
    CHECK_OK(call("a", &first));
    put("server", A " old\n" B " new\n");
    put("a", A "\n" B "\n");
    several_looks();
    put("a", B "\n" A "\n");
    put("server", B " new\n" A " old\n");
    several_looks();
    CHECK_EQ(ended[0] + ended[1], 0);
    CHECK_OK(call("a", &next));
    UNTIL(n_came == 2);
    CHECK_STR(identity(came[0]), "old");
    CHECK_STR(identity(came[1]), "new");
    put("a", B "\n");
    put("server", B " new\n");
    UNTIL(weft_ep_get_state(first) == WEFT_EP_FAILED);
    UNTIL(weft_ep_get_state(came[0]) == WEFT_EP_FAILED);
    several_looks();
    CHECK_EQ(weft_ep_get_state(next), WEFT_EP_UP);
    CHECK_EQ(weft_ep_get_state(came[1]), WEFT_EP_UP);
    over();
}

static void comes_back(const char *name, int expected)
{
    char keys[400];
    weft_ep_t *a;
    weft_log_set_level(WEFT_LOG_ERROR);
    snprintf(keys, sizeof keys, A " anna\n" B " %s\n", name);
    serve("tcp", keys, NULL);
    put("a", A "\n");
    CHECK_OK(call("a", &a));
    UNTIL(n_came == 1);
    answer = WEFT_RECONNECT;
    put("a", B "\n");
    UNTIL(ended[1] == 1);
    UNTIL(weft_ep_get_state(a) == WEFT_EP_UP);
    UNTIL(n_came == expected);
    UNTIL(weft_ep_get_state(came[expected - 1]) == WEFT_EP_UP);
    CHECK_STR(identity(came[expected - 1]), name);
    CHECK_EQ(weft_ep_get_state(came[0]), expected == 1 ? WEFT_EP_UP : WEFT_EP_RECONNECTING);
    over();
}

TEST(who_comes_back_as_the_same_with_a_new_key_has_the_same_endpoint)
{
    comes_back("anna", 1);
}

TEST(who_comes_back_as_another_has_an_endpoint_of_its_own)
{
    comes_back("bert", 2);
}

static char seen[3][64];
static bool seen_proof;

static weft_status_t admit(const weft_newcomer_t *peer, void *user)
{
    (void)user;
    CHECK(peer->size >= sizeof *peer);
    snprintf(seen[0], sizeof seen[0], "%s", peer->identity);
    snprintf(seen[1], sizeof seen[1], "%s", peer->cipher);
    snprintf(seen[2], sizeof seen[2], "%s", peer->address);
    seen_proof = peer->authenticated;
    return strcmp(peer->identity, "bert") ? WEFT_OK : WEFT_ERR_REFUSED;
}

static void asked(const char *scheme, const char *cipher)
{
    weft_ep_t *a, *b;
    weft_log_set_level(WEFT_LOG_ERROR);
    serve(scheme, A " anna\n" B " bert\n", admit);
    put("a", A "\n");
    put("b", B "\n");
    CHECK_OK(call("a", &a));
    CHECK_STR(seen[0], "anna");
    CHECK(!strncmp(seen[1], cipher, 4) && strlen(seen[1]) >= strlen(cipher));
    CHECK(strstr(seen[2], "127.0.0.1") && seen_proof);
    CHECK_EQ(call("b", &b), WEFT_ERR_REFUSED);
    CHECK_STR(seen[0], "bert");
    CHECK_EQ(n_came, 1);
    over();
}

TEST(a_hook_decides_by_the_name_of_the_key)
{
    asked("tcp", "");
}

TEST(a_hook_knows_the_cipher)
{
    asked("tls", "TLS_");
}

static void who(weft_request_t *request, void *user)
{
    char name[64], cut[3];
    (void)user;
    size_t n = weft_request_identity(request, name, sizeof name);
    CHECK_EQ(weft_request_identity(request, cut, sizeof cut), n);
    CHECK(strlen(cut) == 2 && !strncmp(cut, name, 2));
    CHECK_EQ(weft_request_identity(NULL, NULL, 0), 0);
    weft_value_t v = weft_text(name, n);
    CHECK_OK(weft_request_reply(request, &v, 1));
}

TEST(a_function_knows_who_calls)
{
    weft_ep_t *b;
    weft_service_t *service;
    weft_client_t *client;
    weft_method_t *method;
    weft_reply_t reply;
    weft_op_t op = WEFT_OP_INIT;
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    serve("tcp", A " anna\n" B " bert\n", NULL);
    put("b", B "\n");
    CHECK_OK(weft_service_open(rts[0], "hall", NULL, &service));
    CHECK_OK(weft_service_add(service, "who() -> string", who, NULL, NULL));
    CHECK_OK(call("b", &b));
    o.service = "hall";
    CHECK_OK(weft_client_on(b, &o, &client));
    CHECK_OK(weft_client_method(client, "who() -> string", &method));
    CHECK_OK(weft_call(method, NULL, 0, &reply, &op));
    UNTIL(weft_op_done(&op));
    CHECK_OK(op.status);
    CHECK_EQ(reply.code, WEFT_CODE_OK);
    CHECK(reply.values[0].view.n == 4 && !memcmp(reply.values[0].view.data, "bert", 4));
    weft_reply_release(&reply);
    over();
}
