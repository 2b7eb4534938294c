/* registry/redis.c - redis://HOST: a registry in a Redis server.
 *
 * An entry is a key weft:SERVICE@INSTANCE that expires with the lease, and is renewed at a third of it. Its value begins with a
 * token of the registry that made it: a script on the server, which is one step there, changes a key only for who has its token.
 * weft:index lists the names with the time at which each expires, so that nobody has to walk through all keys of a server that is
 * used for other things too; it goes when nobody renews anything. Who leaves empties its key for a moment, and so says that it
 * left: what merely vanishes may be about to come back (redis_known.c).
 *
 * Changes are published on a channel, and deaths are told by the server if notify-keyspace-events is on; a look every second finds
 * what was not told. The same look finds out whether ours are still there, since someone may have emptied the server.
 *
 *     no link --ready()--> open --any trouble--> no link, and none is tried before retry_at: 50 ms, twice as long each time, 1 s
 *
 * A link that is new has its entries renewed at once. Two connections, both of the registry's thread: one to ask, one to listen.
 *
 * Promise: no call takes longer than CALL_NS after the server has stopped answering; what is ours comes back within a second or so
 * after the server does, or was emptied; what is strange is not believed. tests/fault/registry_redis.c, tests/fault/registry_redis.c,
 * tests/fault/registry_redis_hostile.c. */
#include "registry/redis.h"

#ifndef WEFT_HIREDIS

static weft_status_t redis_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    (void)registry;
    (void)rest;
    (void)backend_out;
    return wefti_redis_load(); /* which says why not */
}

const reg_backend_t wefti_reg_redis = {.scheme = "redis", .open = redis_open};
const reg_backend_t wefti_reg_redis_unix = {.scheme = "redis+unix", .open = redis_open};

#else

#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/clock.h"

#define PREFIX "weft:"
#define INDEX "weft:index"
#define CALL_NS (2 * WEFT_SECOND)
#define DELAY_MIN_NS (50 * WEFT_MILLISECOND)
#define DELAY_MAX_NS WEFT_SECOND
#define LISTEN_NS (5 * WEFT_SECOND) /* nobody watches for so long: nobody listens */
enum { AT_ONCE = 200, FETCH_AT_ONCE = 64, TOLD_AT_ONCE = 10000 };

typedef struct redis {
    weft_registry_t *registry;
    redis_address_t address;
    char lease_ms[24], channel[40], pattern[48];
    uint8_t token[REDIS_TOKEN];
    uint64_t changes;
    wefti_rng_t rng;

    redis_link_t link, ear; /* to ask, to listen */
    uint64_t retry_at, delay;
    bool nudged;          /* wait() has said that it is time to try again */
    weft_status_t status; /* while there is no link: why */

    bool fresh, left; /* nothing was renewed over this link yet; everything of ours is gone */
    uint64_t renewed_at, listened_at;
    redis_known_t known;
    uint8_t value[REDIS_HEAD + REG_BYTES_MAX];
} redis_t;

/* --- what runs on the server ------------------------------------------------------------------------------------------------ */

/* An index whose members all expired a minute ago is empty, and one that nobody renews expires itself. */
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

/* token, lease, name, channel, value: 1, or 0 if it is another's. */
static const char lua_enter[] = LUA_INDEX "local key = '" PREFIX "' .. ARGV[3]\n"
                                          "local has = redis.call('GETRANGE', key, 0, 15)\n"
                                          "if has ~= '' and has ~= ARGV[1] then return 0 end\n"
                                          "redis.call('SET', key, ARGV[5], 'PX', ARGV[2])\n"
                                          "note(tonumber(ARGV[2]), ARGV[3])\n"
                                          "redis.pcall('PUBLISH', ARGV[4], ARGV[3])\n"
                                          "return 1\n";

/* token, lease, whether to renew, names: for each 1, or 0 if it is not there, or another's. */
static const char lua_keep[] = LUA_INDEX "local out = {}\n"
                                         "for i = 4, #ARGV do\n"
                                         "  local key = '" PREFIX "' .. ARGV[i]\n"
                                         "  local ours = redis.pcall('GETRANGE', key, 0, 15) == ARGV[1]\n"
                                         "  if ours and ARGV[3] == '1' then\n"
                                         "    redis.call('PEXPIRE', key, ARGV[2])\n"
                                         "    note(tonumber(ARGV[2]), ARGV[i])\n"
                                         "  end\n"
                                         "  ours = ours and redis.call('ZSCORE', KEYS[1], ARGV[i])\n"
                                         "  out[#out + 1] = ours and 1 or 0\n"
                                         "end\n"
                                         "return out\n";

/* token, channel, names: emptied, for others to see, and gone soon. */
static const char lua_leave[] = "for i = 3, #ARGV do\n"
                                "  local key = '" PREFIX "' .. ARGV[i]\n"
                                "  if redis.pcall('GETRANGE', key, 0, 15) == ARGV[1] then\n"
                                "    redis.call('SET', key, '', 'PX', 5000)\n"
                                "    redis.pcall('PUBLISH', ARGV[2], ARGV[i])\n"
                                "  end\n"
                                "end\n"
                                "return 1\n";

/* Names, each followed by the beginning of its value. */
static const char lua_list[] =
    "local out = {}\n"
    "for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
    "  local head = redis.pcall('GETRANGE', '" PREFIX "' .. name, 0, 23)\n"
    "  if type(head) == 'string' and (head ~= '' or redis.call('EXISTS', '" PREFIX "' .. name) == 1) then\n"
    "    out[#out + 1] = name\n"
    "    out[#out + 1] = head\n"
    "  end\n"
    "end\n"
    "return out\n";

/* --- trouble ---------------------------------------------------------------------------------------------------------------- */

static void complain(redis_t *b, const char *why)
{
    wefti_reg_trouble(&b->registry->trouble, wefti_rarely_text(why), "the registry %s: %s; it is tried again", b->registry->uri,
                      why);
}

static void hang_up(redis_t *b)
{
    wefti_redis_hang_up(&b->link);
    wefti_redis_hang_up(&b->ear);
}

/* The link is of no more use. */
static weft_status_t broken(redis_t *b, weft_status_t st, const char *why)
{
    hang_up(b);
    b->delay = !b->delay ? DELAY_MIN_NS : 2 * b->delay < DELAY_MAX_NS ? 2 * b->delay : DELAY_MAX_NS;
    b->retry_at = wefti_clock_ns() + b->delay - wefti_rng_below(&b->rng, b->delay / 4); /* not all of a thousand at once */
    b->nudged = false;
    b->status = st == WEFT_ERR_LIMIT ? st : WEFT_ERR_UNREACHABLE;
    if (st == WEFT_ERR_NOMEM)
        return st;
    complain(b, why);
    return b->status;
}

/* What the server says of a command that it does not carry out, fit for a line of the log. */
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

static weft_status_t refused(redis_t *b, const redisReply *r)
{
    char text[REDIS_WHY] = "it answers something else than was asked";
    if (r->type == REDIS_REPLY_ERROR)
        quote(r, text);
    complain(b, text);
    return r->type == REDIS_REPLY_ERROR && !strncmp(r->str, "OOM", 3) ? WEFT_ERR_LIMIT : WEFT_ERR_UNREACHABLE;
}

/* --- asking ----------------------------------------------------------------------------------------------------------------- */

static weft_status_t hear(redis_t *b, uint64_t deadline, redisReply **reply_out)
{
    char why[REDIS_WHY] = "";
    weft_status_t st = wefti_redis_hear(&b->link, deadline, reply_out, why);
    return st ? broken(b, st, why) : WEFT_OK;
}

/* Who we are; and how many replies that makes. */
static weft_status_t introduce(redis_t *b, redis_link_t *l, int *replies_out)
{
    const redis_address_t *a = &b->address;
    redis_word_t auth[3] = {redis_text("AUTH"), redis_text(*a->user ? a->user : a->password), redis_text(a->password)};
    char db[16];
    snprintf(db, sizeof db, "%u", a->db);
    redis_word_t use[2] = {redis_text("SELECT"), redis_text(db)};
    weft_status_t st = *a->password ? wefti_redis_say(l, *a->user ? 3 : 2, auth) : WEFT_OK;
    *replies_out = *a->password ? 2 : 1;
    return st ? st : wefti_redis_say(l, 2, use);
}

/* A link that works, as far as can be known. */
static weft_status_t ready(redis_t *b)
{
    char why[REDIS_WHY] = "";
    int replies = 0;
    uint64_t now = wefti_clock_ns();
    if (b->link.fd >= 0 && !wefti_redis_broken(&b->link))
        return WEFT_OK;
    if (b->link.fd >= 0) { /* it was lost while nobody used it */
        hang_up(b);
        b->retry_at = 0;
    }
    if (now < b->retry_at)
        return b->status;
    weft_status_t st = wefti_redis_dial(&b->link, &b->address, now + CALL_NS, why);
    if (!st)
        st = introduce(b, &b->link, &replies);
    if (st)
        return broken(b, st, why);
    for (int i = 0; i < replies; i++) {
        redisReply *r;
        st = hear(b, now + CALL_NS, &r);
        if (st)
            return st;
        bool ok = r->type == REDIS_REPLY_STATUS;
        if (!ok && r->type == REDIS_REPLY_ERROR)
            quote(r, why);
        wefti_redis_forget(r);
        if (!ok)
            return broken(b, WEFT_ERR_UNREACHABLE, *why ? why : "it does not speak Redis's protocol");
    }
    b->delay = 0;
    b->fresh = true;
    b->nudged = false;
    return WEFT_OK;
}

/* A script: its one key is the index. */
static weft_status_t eval(redis_t *b, const char *script, size_t n, const redis_word_t *args, redisReply **reply_out)
{
    redis_word_t words[AT_ONCE + 16] = {redis_text("EVAL"), redis_text(script), redis_text("1"), redis_text(INDEX)};
    weft_status_t st = ready(b);
    if (st)
        return st;
    if (n)
        memcpy(words + 4, args, n * sizeof *args);
    st = wefti_redis_say(&b->link, 4 + n, words);
    return st ? broken(b, st, "") : hear(b, wefti_clock_ns() + CALL_NS, reply_out);
}

/* --- ours ------------------------------------------------------------------------------------------------------------------- */

static void name_of(const reg_own_t *own, char name[REDIS_NAME_MAX + 1])
{
    snprintf(name, REDIS_NAME_MAX + 1, "%s@%s", own->entry->service, own->entry->instance);
}

static weft_status_t redis_enter(void *backend, reg_own_t *own)
{
    redis_t *b = (redis_t *)backend;
    char name[REDIS_NAME_MAX + 1];
    redisReply *r;
    name_of(own, name);
    wefti_writer_t w = wefti_writer(b->value, REDIS_HEAD);
    wefti_put_bytes(&w, b->token, REDIS_TOKEN);
    wefti_put_u64(&w, ++b->changes);
    size_t n = REDIS_HEAD + wefti_reg_entry_encode(own->entry, b->value + REDIS_HEAD, REG_BYTES_MAX);
    redis_word_t args[] = {
        {b->token, REDIS_TOKEN}, redis_text(b->lease_ms), redis_text(name), redis_text(b->channel), {b->value, n}};
    weft_status_t st = ready(b);
    if (st)
        return st;
    own->held = own; /* from here on it may be there, even if we are not told */
    st = eval(b, lua_enter, 5, args, &r);
    if (st)
        return st;
    if (r->type == REDIS_REPLY_INTEGER) {
        st = r->integer == 1 ? WEFT_OK : WEFT_ERR_STATE;
    } else if (r->type == REDIS_REPLY_ERROR && strstr(r->str, "WRONGTYPE")) {
        wefti_warn_rarely(&b->registry->trouble.rarely, wefti_rarely_text(name),
                          "the registry %s has a key " PREFIX "%s that is no entry; remove it, or use another name",
                          b->registry->uri, name);
        st = WEFT_ERR_STATE;
    } else {
        st = refused(b, r);
    }
    if (st == WEFT_ERR_STATE)
        own->held = NULL;
    wefti_redis_forget(r);
    return st;
}

typedef char name_t[REDIS_NAME_MAX + 1];

static void leave_names(redis_t *b, size_t n, name_t *names)
{
    redis_word_t args[AT_ONCE + 2] = {{b->token, REDIS_TOKEN}, redis_text(b->channel)};
    redisReply *r;
    for (size_t i = 0; i < n; i++)
        args[2 + i] = redis_text(names[i]);
    if (!n || eval(b, lua_leave, 2 + n, args, &r))
        return; /* then the lease takes them away */
    wefti_redis_forget(r);
}

static void redis_leave(void *backend, reg_own_t *own)
{
    redis_t *b = (redis_t *)backend;
    name_t name;
    if (!own->held)
        return;
    own->held = NULL;
    name_of(own, name);
    if (!b->left)
        leave_names(b, 1, &name);
}

static void redis_leave_all(void *backend, wefti_list_t *ours)
{
    redis_t *b = (redis_t *)backend;
    name_t names[AT_ONCE];
    size_t n = 0;
    b->left = true;
    wefti_list_each(l, ours) {
        const reg_own_t *own = wefti_container_of(l, reg_own_t, link);
        if (b->link.fd < 0)
            return; /* a server that is away now is not waited for */
        if (!own->held)
            continue;
        name_of(own, names[n++]);
        if (n < AT_ONCE)
            continue;
        leave_names(b, n, names);
        n = 0;
    }
    if (b->link.fd >= 0)
        leave_names(b, n, names);
}

/* Which of these are still there? */
static weft_status_t renew_some(redis_t *b, bool renew, size_t n, reg_own_t **owns)
{
    name_t names[AT_ONCE];
    redis_word_t args[AT_ONCE + 3] = {{b->token, REDIS_TOKEN}, redis_text(b->lease_ms), redis_text(renew ? "1" : "0")};
    redisReply *r;
    for (size_t i = 0; i < n; i++) {
        name_of(owns[i], names[i]);
        args[3 + i] = redis_text(names[i]);
    }
    weft_status_t st = n ? eval(b, lua_keep, 3 + n, args, &r) : WEFT_OK;
    if (st || !n)
        return st;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != n)
        st = refused(b, r);
    for (size_t i = 0; !st && i < n; i++)
        if (r->element[i]->type != REDIS_REPLY_INTEGER || r->element[i]->integer != 1)
            owns[i]->held = NULL;
    wefti_redis_forget(r);
    return st;
}

static weft_status_t redis_renew(void *backend, wefti_list_t *ours)
{
    redis_t *b = (redis_t *)backend;
    reg_own_t *owns[AT_ONCE];
    size_t n = 0;
    weft_status_t st = ready(b);
    uint64_t now = wefti_clock_ns();
    bool renew = b->fresh || now - b->renewed_at >= b->registry->lease_ns / 3 - b->registry->look_ns / 2;
    for (wefti_list_t *l = ours->next; !st && l != ours; l = l->next) {
        reg_own_t *own = wefti_container_of(l, reg_own_t, link);
        if (own->held) /* also if a change of it could not be written: what is there is better than nothing */
            owns[n++] = own;
        if (n < AT_ONCE && l->next != ours)
            continue;
        st = renew_some(b, renew, n, owns);
        n = 0;
    }
    if (!st && renew) {
        b->renewed_at = now;
        b->fresh = false;
    }
    return st;
}

static weft_status_t redis_keep(void *backend, reg_own_t *own)
{
    return own->held ? WEFT_OK : redis_enter(backend, own);
}

/* --- looking ---------------------------------------------------------------------------------------------------------------- */

/* Some of the values that we do not have. */
static weft_status_t fetch(redis_t *b, size_t n, redis_seen_t **seen)
{
    char keys[FETCH_AT_ONCE][sizeof PREFIX + REDIS_NAME_MAX], last[16];
    weft_status_t st = WEFT_OK;
    uint64_t deadline = wefti_clock_ns() + CALL_NS;
    snprintf(last, sizeof last, "%d", REDIS_HEAD + REG_BYTES_MAX); /* one more than there may be: what is longer is no entry */
    for (size_t i = 0; i < n; i++) {
        snprintf(keys[i], sizeof keys[i], PREFIX "%s", seen[i]->name);
        redis_word_t words[4] = {redis_text("GETRANGE"), redis_text(keys[i]), redis_text("0"), redis_text(last)};
        st = wefti_redis_say(&b->link, 4, words);
        if (st)
            return broken(b, st, "");
    }
    for (size_t i = 0; i < n; i++) {
        redisReply *r;
        st = hear(b, deadline, &r);
        if (st)
            return st;
        bool text = r->type == REDIS_REPLY_STRING;
        bool ok = wefti_redis_known_value(seen[i], text ? r->str : "?", text ? r->len : 1);
        wefti_redis_forget(r);
        if (!ok)
            return broken(b, WEFT_ERR_NOMEM, "");
    }
    return WEFT_OK;
}

static weft_status_t list_names(redis_t *b, redis_known_t *now)
{
    redisReply *r;
    weft_status_t st = eval(b, lua_list, 0, NULL, &r);
    if (st)
        return st;
    if (r->type != REDIS_REPLY_ARRAY)
        st = refused(b, r);
    for (size_t i = 0; !st && i + 1 < r->elements; i += 2) {
        const redisReply *name = r->element[i], *head = r->element[i + 1];
        if (name->type == REDIS_REPLY_STRING && head->type == REDIS_REPLY_STRING &&
            !wefti_redis_known_add(now, name->str, name->len, head->str, head->len))
            st = WEFT_ERR_NOMEM;
    }
    wefti_redis_forget(r);
    return st;
}

static weft_status_t look(redis_t *b)
{
    redis_known_t now = {0};
    redis_seen_t *wanted[FETCH_AT_ONCE];
    size_t n = 0;
    uint64_t time = wefti_clock_ns();
    weft_status_t st = list_names(b, &now);
    if (!st && !wefti_redis_known_turn(&b->known, &now, time))
        st = WEFT_ERR_NOMEM;
    wefti_redis_known_free(&now);
    for (size_t i = 0; !st && i < b->known.n; i++) {
        if (!b->known.at[i].fetched)
            wanted[n++] = &b->known.at[i];
        if (n == FETCH_AT_ONCE || (n && i + 1 == b->known.n)) {
            st = fetch(b, n, wanted);
            n = 0;
        }
    }
    if (n && !st)
        st = fetch(b, n, wanted);
    /* who keeps trying keeps believing, however long it takes */
    b->known.asked_at = !st || (b->known.asked_at && time - b->known.asked_at < REDIS_GRACE_NS) ? wefti_clock_ns() : 0;
    return st;
}

static weft_status_t redis_list(void *backend, reg_found_t *found)
{
    redis_t *b = (redis_t *)backend;
    weft_status_t st = look(b);
    return st ? st : wefti_redis_known_tell(&b->known, false, found);
}

/* Without it a look every second has to do, so it may fail. */
static void listen_in(redis_t *b)
{
    char why[REDIS_WHY];
    int replies;
    redis_word_t ours[2] = {redis_text("SUBSCRIBE"), redis_text(b->channel)};
    redis_word_t theirs[2] = {redis_text("PSUBSCRIBE"), redis_text(b->pattern)};
    redisReply *r = NULL;
    b->listened_at = wefti_clock_ns();
    if (b->ear.fd >= 0 || ready(b) || wefti_redis_dial(&b->ear, &b->address, b->listened_at + CALL_NS, why))
        return;
    weft_status_t st = introduce(b, &b->ear, &replies);
    if (!st)
        st = wefti_redis_say(&b->ear, 2, ours);
    if (!st)
        st = wefti_redis_say(&b->ear, 2, theirs);
    if (!st)
        st = wefti_redis_hear(&b->ear, b->listened_at + CALL_NS, &r, why); /* it is sent */
    wefti_redis_forget(r);
    if (st)
        wefti_redis_hang_up(&b->ear);
}

static weft_status_t redis_known(void *backend, reg_found_t *found)
{
    redis_t *b = (redis_t *)backend;
    listen_in(b); /* first: what changes after the look is told */
    weft_status_t st = look(b);
    return st ? st : wefti_redis_known_tell(&b->known, true, found);
}

/* --- waiting ---------------------------------------------------------------------------------------------------------------- */

static bool is(const redisReply *r, const char *text)
{
    return r->type == REDIS_REPLY_STRING && r->len == strlen(text) && !memcmp(r->str, text, r->len);
}

/* A message of ours, or a key that went. That others were renewed is no news. */
static bool is_news(const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3)
        return false;
    return is(r->element[0], "message") ||
           (r->elements == 4 && is(r->element[0], "pmessage") &&
            (is(r->element[3], "expired") || is(r->element[3], "del") || is(r->element[3], "evicted")));
}

static bool listen_to(redis_t *b)
{
    bool news = false;
    for (int i = 0; b->ear.fd >= 0 && i < TOLD_AT_ONCE; i++) {
        char why[REDIS_WHY];
        redisReply *r;
        weft_status_t st = wefti_redis_hear(&b->ear, 0, &r, why);
        if (st == WEFT_ERR_AGAIN)
            break;
        if (st) {
            wefti_redis_hang_up(&b->ear);
            return true;
        }
        news |= is_news(r);
        wefti_redis_forget(r);
    }
    return news;
}

static bool redis_wait(void *backend, uint64_t ns)
{
    redis_t *b = (redis_t *)backend;
    uint64_t now = wefti_clock_ns(), until = ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
    bool wanted = ns != WEFT_FOREVER && b->link.fd < 0 && !b->nudged;
    if (wanted && b->retry_at < until)
        until = b->retry_at;
    if (b->ear.fd >= 0 && now - b->listened_at > LISTEN_NS)
        wefti_redis_hang_up(&b->ear);
    struct pollfd p[3] = {{b->registry->wake_fd, POLLIN, 0}, {b->link.fd, POLLIN, 0}, {b->ear.fd, POLLIN, 0}};
    uint64_t ms = until <= now ? 0 : (until - now + WEFT_MILLISECOND - 1) / WEFT_MILLISECOND;
    if (poll(p, 3, (int)(ms > 60000 ? 60000 : ms)) < 0)
        return false;
    if (p[1].revents) { /* it was not asked anything */
        hang_up(b);
        b->retry_at = 0;
        return true;
    }
    bool news = p[2].revents && listen_to(b);
    if (wanted && wefti_clock_ns() >= b->retry_at) {
        b->nudged = true;
        return true;
    }
    return news;
}

/* --- opening and closing ---------------------------------------------------------------------------------------------------- */

static weft_status_t open_at(weft_registry_t *registry, const char *rest, bool unix_socket, void **backend_out)
{
    redis_address_t address;
    weft_status_t st = wefti_redis_address(rest, unix_socket, &address);
    if (!st)
        st = wefti_redis_load();
    if (st)
        return st;
    redis_t *b = (redis_t *)wefti_calloc(1, sizeof *b);
    if (!b)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    b->registry = registry;
    b->address = address;
    b->link.fd = b->ear.fd = -1;
    b->status = WEFT_ERR_UNREACHABLE;
    snprintf(b->lease_ms, sizeof b->lease_ms, "%llu", (unsigned long long)(registry->lease_ns / WEFT_MILLISECOND));
    snprintf(b->channel, sizeof b->channel, PREFIX "%u:changed", address.db); /* channels know no databases */
    snprintf(b->pattern, sizeof b->pattern, "__keyspace@%u__:" PREFIX "*", address.db);
    if (getrandom(b->token, sizeof b->token, 0) != (ssize_t)sizeof b->token ||
        getrandom(&b->rng.state, sizeof b->rng.state, 0) != (ssize_t)sizeof b->rng.state) {
        wefti_free(b);
        return wefti_fail(WEFT_ERR_SYSTEM, "the kernel has no random bytes");
    }
    *backend_out = b;
    return WEFT_OK;
}

static weft_status_t redis_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    return open_at(registry, rest, false, backend_out);
}

static weft_status_t redis_unix_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    return open_at(registry, rest, true, backend_out);
}

static void redis_close(void *backend)
{
    redis_t *b = (redis_t *)backend;
    hang_up(b);
    wefti_redis_known_free(&b->known);
    explicit_bzero(&b->address, sizeof b->address);
    wefti_free(b);
}

#define REDIS(name, opening) \
    { \
        .scheme = name, .open = opening, .enter = redis_enter, .leave = redis_leave, .renew = redis_renew, .keep = redis_keep, \
        .list = redis_list, .wait = redis_wait, .close = redis_close, .known = redis_known, .leave_all = redis_leave_all \
    }
const reg_backend_t wefti_reg_redis = REDIS("redis", redis_open);
const reg_backend_t wefti_reg_redis_unix = REDIS("redis+unix", redis_unix_open);

#endif
