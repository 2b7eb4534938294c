/* registry/redis.c - redis://HOST: a registry in a Redis server.
 *
 * An entry is a key weft:SERVICE@INSTANCE that expires with the lease, and is renewed at a third of it. Its value begins with a
 * random id of the registry that made it. Scripts on the server, which are atomic there, change a key only for the registry
 * with that id. weft:index lists the names with the time at which each expires, so that nobody has to walk through all keys of
 * a server that is used for other things too. A registry that leaves empties its keys for a moment, and so tells others that it
 * left: an entry that just disappears may come back (redis_known.c).
 *
 *     no connection --ready()--> open --any trouble--> no connection, and no attempt before `pause` is over: 50 ms to 1 s
 *
 * Over a new connection our entries are renewed at once. Two connections, both of the registry's thread: one to ask, one to
 * listen. redis_list.c has the other half: listing and waiting.
 *
 * Promise: no call takes longer than REDIS_CALL_NS after the server has stopped answering. Our entries are back about a second
 * after the server is, or was emptied. tests/fault/registry_redis.c, tests/fault/registry_redis_hostile.c. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "registry/redis.h"

#define PAUSE_MIN_NS (50 * WEFT_MILLISECOND)
#define PAUSE_MAX_NS WEFT_SECOND
enum { AT_ONCE = 200 };

/* --- what runs on the server ------------------------------------------------------------------------------------------- */

/* Names that expired a minute ago leave the index; an index that nobody renews expires. */
#define LUA_INDEX \
    "local t = redis.call('TIME')\n" \
    "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n" \
    "local function note(lease, name)\n" \
    "  local keep = lease + 60000\n" \
    "  redis.pcall('ZADD', KEYS[1], now + lease, name)\n" \
    "  redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 60000)\n" \
    "  local left = redis.pcall('PTTL', KEYS[1])\n" \
    "  if type(left) == 'number' and left < keep then redis.pcall('PEXPIRE', KEYS[1], keep) end\n" \
    "end\n"

/* owner, lease, name, channel, value: 1, or 0 if it has another owner. */
static const char lua_enter[] = LUA_INDEX "local key = '" REDIS_PREFIX "' .. ARGV[3]\n"
                                          "local has = redis.call('GETRANGE', key, 0, 15)\n"
                                          "if has ~= '' and has ~= ARGV[1] then return 0 end\n"
                                          "redis.call('SET', key, ARGV[5], 'PX', ARGV[2])\n"
                                          "note(tonumber(ARGV[2]), ARGV[3])\n"
                                          "redis.pcall('PUBLISH', ARGV[4], ARGV[3])\n"
                                          "return 1\n";

/* owner, lease, whether to renew, names: for each 1, or 0 if it is not there, or has another owner. */
static const char lua_keep[] = LUA_INDEX "local out = {}\n"
                                         "for i = 4, #ARGV do\n"
                                         "  local key = '" REDIS_PREFIX "' .. ARGV[i]\n"
                                         "  local ours = redis.pcall('GETRANGE', key, 0, 15) == ARGV[1]\n"
                                         "  if ours and ARGV[3] == '1' then\n"
                                         "    redis.call('PEXPIRE', key, ARGV[2])\n"
                                         "    note(tonumber(ARGV[2]), ARGV[i])\n"
                                         "  end\n"
                                         "  ours = ours and redis.call('ZSCORE', KEYS[1], ARGV[i])\n"
                                         "  out[#out + 1] = ours and 1 or 0\n"
                                         "end\n"
                                         "return out\n";

/* owner, channel, names: each becomes empty, for others to see, and expires soon. */
static const char lua_leave[] = "for i = 3, #ARGV do\n"
                                "  local key = '" REDIS_PREFIX "' .. ARGV[i]\n"
                                "  if redis.pcall('GETRANGE', key, 0, 15) == ARGV[1] then\n"
                                "    redis.call('SET', key, '', 'PX', 5000)\n"
                                "    redis.pcall('PUBLISH', ARGV[2], ARGV[i])\n"
                                "  end\n"
                                "end\n"
                                "return 1\n";

/* --- trouble ----------------------------------------------------------------------------------------------------------- */

void wefti_redis_down(redis_t *b)
{
    wefti_redis_disconnect(&b->conn);
    wefti_redis_disconnect(&b->ear);
}

weft_status_t wefti_redis_failed(redis_t *b, weft_status_t st, const char *why)
{
    wefti_redis_down(b);
    wefti_reg_pause(&b->pause, &b->rng, PAUSE_MIN_NS, PAUSE_MAX_NS);
    b->nudged = false;
    b->status = st == WEFT_ERR_LIMIT ? st : WEFT_ERR_UNREACHABLE;
    if (st == WEFT_ERR_NOMEM)
        return st;
    wefti_reg_complain(b->registry, why);
    return b->status;
}

/* An error that the server answers, fit for a line of the log. */
static void quote(const redisReply *r, char text[REDIS_WHY])
{
    char said[128];
    size_t n = 0;
    for (; n < r->len && n < sizeof said - 1; n++)
        said[n] = (char)(r->str[n] >= ' ' && r->str[n] <= '~' ? r->str[n] : '?');
    said[n] = 0;
    bool password = !strncmp(said, "NOAUTH", 6) || !strncmp(said, "WRONGPASS", 9) || strstr(said, "invalid password");
    snprintf(text, REDIS_WHY, password ? "it wants another password (%.90s); write redis://:PASSWORD@HOST" : "it says: %s", said);
}

weft_status_t wefti_redis_refused(redis_t *b, const redisReply *r)
{
    char text[REDIS_WHY] = "it answers something else than was asked";
    if (r->type == REDIS_REPLY_ERROR)
        quote(r, text);
    wefti_reg_complain(b->registry, text);
    return r->type == REDIS_REPLY_ERROR && !strncmp(r->str, "OOM", 3) ? WEFT_ERR_LIMIT : WEFT_ERR_UNREACHABLE;
}

/* --- asking ------------------------------------------------------------------------------------------------------------ */

weft_status_t wefti_redis_reply(redis_t *b, uint64_t deadline, redisReply **reply_out)
{
    char why[REDIS_WHY] = "";
    weft_status_t st = wefti_redis_receive(&b->conn, deadline, reply_out, why);
    return st ? wefti_redis_failed(b, st, why) : WEFT_OK;
}

weft_status_t wefti_redis_log_in(redis_t *b, redis_conn_t *c, int *replies_out)
{
    const redis_address_t *a = &b->address;
    redis_word_t auth[3] = {redis_text("AUTH"), redis_text(*a->user ? a->user : a->password), redis_text(a->password)};
    char db[16];
    snprintf(db, sizeof db, "%u", a->db);
    redis_word_t use[2] = {redis_text("SELECT"), redis_text(db)};
    weft_status_t st = *a->password ? wefti_redis_send(c, *a->user ? 3 : 2, auth) : WEFT_OK;
    *replies_out = *a->password ? 2 : 1;
    return st ? st : wefti_redis_send(c, 2, use);
}

weft_status_t wefti_redis_ready(redis_t *b)
{
    char why[REDIS_WHY] = "";
    int replies = 0;
    uint64_t now = wefti_clock_ns();
    if (b->conn.fd >= 0 && !wefti_redis_broken(&b->conn))
        return WEFT_OK;
    if (b->conn.fd >= 0) { /* it was lost while it was idle */
        wefti_redis_down(b);
        b->pause.until = 0;
    }
    if (now < b->pause.until)
        return b->status;
    weft_status_t st = wefti_redis_connect(&b->conn, &b->address, now + REDIS_CALL_NS, why);
    if (!st)
        st = wefti_redis_log_in(b, &b->conn, &replies);
    if (st)
        return wefti_redis_failed(b, st, why);
    for (int i = 0; i < replies; i++) {
        redisReply *r;
        st = wefti_redis_reply(b, now + REDIS_CALL_NS, &r);
        if (st)
            return st;
        bool ok = r->type == REDIS_REPLY_STATUS;
        if (!ok && r->type == REDIS_REPLY_ERROR)
            quote(r, why);
        wefti_redis_reply_free(r);
        if (!ok)
            return wefti_redis_failed(b, WEFT_ERR_UNREACHABLE, *why ? why : "it does not speak Redis's protocol");
    }
    b->pause.ns = 0;
    b->fresh = true;
    b->nudged = false;
    return WEFT_OK;
}

weft_status_t wefti_redis_eval(redis_t *b, const char *script, size_t n, const redis_word_t *args, redisReply **reply_out)
{
    redis_word_t words[AT_ONCE + 16] = {redis_text("EVAL"), redis_text(script), redis_text("1"),
                                        redis_text(REDIS_PREFIX "index")};
    weft_status_t st = wefti_redis_ready(b);
    if (st)
        return st;
    if (n)
        memcpy(words + 4, args, n * sizeof *args);
    st = wefti_redis_send(&b->conn, 4 + n, words);
    return st ? wefti_redis_failed(b, st, "") : wefti_redis_reply(b, wefti_clock_ns() + REDIS_CALL_NS, reply_out);
}

/* --- ours -------------------------------------------------------------------------------------------------------------- */

static weft_status_t redis_enter(void *backend, reg_own_t *own)
{
    redis_t *b = (redis_t *)backend;
    char name[REG_FULL_NAME];
    redisReply *r;
    wefti_reg_entry_name(own->entry, name);
    wefti_writer_t w = wefti_writer(b->value, REDIS_HEAD);
    wefti_put_bytes(&w, b->owner, REDIS_OWNER);
    wefti_put_u64(&w, ++b->changes);
    size_t n = REDIS_HEAD + wefti_reg_entry_encode(own->entry, b->value + REDIS_HEAD, REG_BYTES_MAX);
    redis_word_t args[] = {
        {b->owner, REDIS_OWNER}, redis_text(b->lease_ms), redis_text(name), redis_text(b->channel), {b->value, n}};
    weft_status_t st = wefti_redis_ready(b);
    if (st)
        return st;
    own->held = own; /* from here on it may be there, even if the answer is lost */
    st = wefti_redis_eval(b, lua_enter, 5, args, &r);
    if (st)
        return st;
    if (r->type == REDIS_REPLY_INTEGER) {
        st = r->integer == 1 ? WEFT_OK : WEFT_ERR_STATE;
    } else if (r->type == REDIS_REPLY_ERROR && strstr(r->str, "WRONGTYPE")) {
        wefti_warn_rarely(&b->registry->rarely, wefti_rarely_text(name),
                          "the registry %s has a key " REDIS_PREFIX "%s that is no entry; remove it, or use another name",
                          b->registry->uri, name);
        st = WEFT_ERR_STATE;
    } else {
        st = wefti_redis_refused(b, r);
    }
    if (st == WEFT_ERR_STATE)
        own->held = NULL;
    wefti_redis_reply_free(r);
    return st;
}

/* Run a script on the names of these entries, which are its arguments after `words`. */
static weft_status_t eval_on(redis_t *b, const char *script, size_t n_words, const redis_word_t *words, size_t n,
                             reg_own_t *const *owns, redisReply **reply_out)
{
    char names[AT_ONCE][REG_FULL_NAME];
    redis_word_t args[AT_ONCE + 3];
    memcpy(args, words, n_words * sizeof *words);
    for (size_t i = 0; i < n; i++) {
        wefti_reg_entry_name(owns[i]->entry, names[i]);
        args[n_words + i] = redis_text(names[i]);
    }
    return wefti_redis_eval(b, script, n_words + n, args, reply_out);
}

/* The next of ours, from *at on, that may be there. 0: no more. */
static size_t next_held(wefti_list_t *ours, wefti_list_t **at, reg_own_t *owns[AT_ONCE])
{
    size_t n = 0;
    for (; *at != ours && n < AT_ONCE; *at = (*at)->next) {
        reg_own_t *own = wefti_container_of(*at, reg_own_t, link);
        if (own->held) /* also if its last change could not be written: the old value is better than none */
            owns[n++] = own;
    }
    return n;
}

static void leave_some(redis_t *b, size_t n, reg_own_t *const *owns)
{
    const redis_word_t words[] = {{b->owner, REDIS_OWNER}, redis_text(b->channel)};
    redisReply *r;
    if (!eval_on(b, lua_leave, 2, words, n, owns, &r)) /* else they expire */
        wefti_redis_reply_free(r);
}

static bool redis_leave(void *backend, reg_own_t *own)
{
    redis_t *b = (redis_t *)backend;
    if (own->held && !b->left)
        leave_some(b, 1, &own);
    return true;
}

static void redis_leave_all(void *backend, wefti_list_t *ours)
{
    redis_t *b = (redis_t *)backend;
    reg_own_t *owns[AT_ONCE];
    wefti_list_t *at = ours->next;
    b->left = true;
    /* do not wait for a server that is out of reach */
    for (size_t n; b->conn.fd >= 0 && (n = next_held(ours, &at, owns));)
        leave_some(b, n, owns);
}

/* Find out which of these are still there, and renew them. */
static weft_status_t renew_some(redis_t *b, bool renew, size_t n, reg_own_t **owns)
{
    const redis_word_t words[] = {{b->owner, REDIS_OWNER}, redis_text(b->lease_ms), redis_text(renew ? "1" : "0")};
    redisReply *r;
    weft_status_t st = eval_on(b, lua_keep, 3, words, n, owns, &r);
    if (st)
        return st;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != n)
        st = wefti_redis_refused(b, r);
    for (size_t i = 0; !st && i < n; i++)
        if (r->element[i]->type != REDIS_REPLY_INTEGER || r->element[i]->integer != 1)
            owns[i]->held = NULL;
    wefti_redis_reply_free(r);
    return st;
}

static weft_status_t redis_renew(void *backend, wefti_list_t *ours)
{
    redis_t *b = (redis_t *)backend;
    reg_own_t *owns[AT_ONCE];
    wefti_list_t *at = ours->next;
    weft_status_t st = wefti_redis_ready(b);
    uint64_t now = wefti_clock_ns();
    bool renew = b->fresh || now - b->renewed_at >= b->registry->lease_ns / 3 - b->registry->look_ns / 2;
    for (size_t n; !st && (n = next_held(ours, &at, owns));)
        st = renew_some(b, renew, n, owns);
    if (!st && renew) {
        b->renewed_at = now;
        b->fresh = false;
    }
    return st;
}

/* --- opening and closing ----------------------------------------------------------------------------------------------- */

static weft_status_t redis_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    redis_address_t address;
    weft_status_t st = wefti_redis_address(rest, registry->ops == &wefti_reg_redis_unix, &address);
    if (!st)
        st = wefti_redis_load();
    if (st)
        return st;
    redis_t *b = (redis_t *)wefti_calloc(1, sizeof *b);
    if (!b)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    b->registry = registry;
    b->address = address;
    b->conn.fd = b->ear.fd = -1;
    b->status = WEFT_ERR_UNREACHABLE;
    snprintf(b->lease_ms, sizeof b->lease_ms, "%llu", (unsigned long long)(registry->lease_ns / WEFT_MILLISECOND));
    snprintf(b->channel, sizeof b->channel, REDIS_PREFIX "%u:changed", address.db); /* channels are not per database */
    snprintf(b->pattern, sizeof b->pattern, "__keyspace@%u__:" REDIS_PREFIX "*", address.db);
    if (getrandom(b->owner, sizeof b->owner, 0) != (ssize_t)sizeof b->owner ||
        getrandom(&b->rng.state, sizeof b->rng.state, 0) != (ssize_t)sizeof b->rng.state) {
        wefti_free(b);
        return wefti_fail(WEFT_ERR_SYSTEM, "the kernel has no random bytes");
    }
    *backend_out = b;
    return WEFT_OK;
}

static void redis_close(void *backend)
{
    redis_t *b = (redis_t *)backend;
    wefti_redis_down(b);
    wefti_redis_known_free(&b->known);
    explicit_bzero(&b->address, sizeof b->address);
    wefti_free(b);
}

#define BACKEND \
    .open = redis_open, .enter = redis_enter, .leave = redis_leave, .renew = redis_renew, .list = wefti_redis_list, \
    .wait = wefti_redis_wait, .close = redis_close, .known = wefti_redis_known, .leave_all = redis_leave_all

const reg_backend_t wefti_reg_redis = {.scheme = "redis", BACKEND};
const reg_backend_t wefti_reg_redis_unix = {.scheme = "redis+unix", BACKEND};
