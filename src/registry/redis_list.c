/* registry/redis_list.c - what a Redis server has: listing it, and waiting for changes.
 *
 * A list has the heads of all values; only those values that have changed are fetched (redis_known.c). Changes are published on
 * a channel, and the server tells of keys that expire if notify-keyspace-events is on. A look every second finds what nobody
 * told; it also finds out whether our entries are still there. tests/fault/registry_redis.c,
 * tests/fault/registry_redis_hostile.c. */
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "registry/redis.h"

#define LISTEN_NS (5 * WEFT_SECOND) /* without a watch for so long the subscription ends */
enum { FETCH_AT_ONCE = 64, TOLD_AT_ONCE = 10000 };

/* All names, each followed by the head of its value. */
static const char lua_list[] =
    "local out = {}\n"
    "for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
    "  local head = redis.pcall('GETRANGE', '" REDIS_PREFIX "' .. name, 0, 23)\n"
    "  if type(head) == 'string' and (head ~= '' or redis.call('EXISTS', '" REDIS_PREFIX "' .. name) == 1) then\n"
    "    out[#out + 1] = name\n"
    "    out[#out + 1] = head\n"
    "  end\n"
    "end\n"
    "return out\n";

/* --- looking ----------------------------------------------------------------------------------------------------------- */

/* Fetch some of the values that we do not have, from *at on. */
static weft_status_t fetch(redis_t *b, size_t *at)
{
    char keys[FETCH_AT_ONCE][sizeof REDIS_PREFIX + REDIS_NAME_MAX], last[16];
    redis_seen_t *seen[FETCH_AT_ONCE];
    size_t n = 0;
    weft_status_t st = WEFT_OK;
    for (; *at < b->known.n && n < FETCH_AT_ONCE; ++*at)
        if (!b->known.at[*at].fetched)
            seen[n++] = &b->known.at[*at];
    uint64_t deadline = wefti_clock_ns() + REDIS_CALL_NS;
    snprintf(last, sizeof last, "%d", REDIS_HEAD + REG_BYTES_MAX); /* one byte more than an entry can have */
    for (size_t i = 0; i < n; i++) {
        snprintf(keys[i], sizeof keys[i], REDIS_PREFIX "%s", seen[i]->name);
        redis_word_t words[4] = {redis_text("GETRANGE"), redis_text(keys[i]), redis_text("0"), redis_text(last)};
        st = wefti_redis_send(&b->conn, 4, words);
        if (st)
            return wefti_redis_failed(b, st, "");
    }
    for (size_t i = 0; i < n; i++) {
        redisReply *r;
        st = wefti_redis_reply(b, deadline, &r);
        if (st)
            return st;
        bool text = r->type == REDIS_REPLY_STRING;
        bool ok = wefti_redis_known_value(seen[i], text ? r->str : "?", text ? r->len : 1);
        wefti_redis_reply_free(r);
        if (!ok)
            return wefti_redis_failed(b, WEFT_ERR_NOMEM, "");
    }
    return WEFT_OK;
}

static weft_status_t list_names(redis_t *b, redis_known_t *now)
{
    redisReply *r;
    weft_status_t st = wefti_redis_eval(b, lua_list, 0, NULL, &r);
    if (st)
        return st;
    if (r->type != REDIS_REPLY_ARRAY)
        st = wefti_redis_refused(b, r);
    for (size_t i = 0; !st && i + 1 < r->elements; i += 2) {
        const redisReply *name = r->element[i], *head = r->element[i + 1];
        if (name->type == REDIS_REPLY_STRING && head->type == REDIS_REPLY_STRING &&
            !wefti_redis_known_add(now, name->str, name->len, head->str, head->len))
            st = WEFT_ERR_NOMEM;
    }
    wefti_redis_reply_free(r);
    return st;
}

static weft_status_t look(redis_t *b)
{
    redis_known_t now = {0};
    uint64_t time = wefti_clock_ns();
    weft_status_t st = list_names(b, &now);
    if (!st && !wefti_redis_known_turn(&b->known, &now, time))
        st = WEFT_ERR_NOMEM;
    wefti_redis_known_free(&now);
    for (size_t at = 0; !st && at < b->known.n;)
        st = fetch(b, &at);
    /* while we keep trying, what was known stays known */
    b->known.asked_at = !st || (b->known.asked_at && time - b->known.asked_at < REDIS_GRACE_NS) ? wefti_clock_ns() : 0;
    return st;
}

weft_status_t wefti_redis_list(void *backend, reg_found_t *found)
{
    redis_t *b = (redis_t *)backend;
    weft_status_t st = look(b);
    return st ? st : wefti_redis_known_tell(&b->known, false, found);
}

/* Subscribe to changes. It may fail: a look every second is enough. */
static void subscribe(redis_t *b)
{
    char why[REDIS_WHY];
    int replies;
    redis_word_t ours[2] = {redis_text("SUBSCRIBE"), redis_text(b->channel)};
    redis_word_t theirs[2] = {redis_text("PSUBSCRIBE"), redis_text(b->pattern)};
    redisReply *r = NULL;
    b->listened_at = wefti_clock_ns();
    if (b->ear.fd >= 0 || wefti_redis_ready(b) || wefti_redis_connect(&b->ear, &b->address, b->listened_at + REDIS_CALL_NS, why))
        return;
    weft_status_t st = wefti_redis_log_in(b, &b->ear, &replies);
    if (!st)
        st = wefti_redis_send(&b->ear, 2, ours);
    if (!st)
        st = wefti_redis_send(&b->ear, 2, theirs);
    if (!st)
        st = wefti_redis_receive(&b->ear, b->listened_at + REDIS_CALL_NS, &r, why); /* this sends all of them */
    wefti_redis_reply_free(r);
    if (st)
        wefti_redis_disconnect(&b->ear);
}

weft_status_t wefti_redis_known(void *backend, reg_found_t *found)
{
    redis_t *b = (redis_t *)backend;
    subscribe(b); /* first, so that no change after the look is missed */
    weft_status_t st = look(b);
    return st ? st : wefti_redis_known_tell(&b->known, true, found);
}

/* --- waiting ----------------------------------------------------------------------------------------------------------- */

static bool is(const redisReply *r, const char *text)
{
    return r->type == REDIS_REPLY_STRING && r->len == strlen(text) && !memcmp(r->str, text, r->len);
}

/* A message of ours, or a key that is gone. A renewal is no news. */
static bool is_news(const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 3)
        return false;
    return is(r->element[0], "message") ||
           (r->elements == 4 && is(r->element[0], "pmessage") &&
            (is(r->element[3], "expired") || is(r->element[3], "del") || is(r->element[3], "evicted")));
}

static bool hear_news(redis_t *b)
{
    bool news = false;
    for (int i = 0; b->ear.fd >= 0 && i < TOLD_AT_ONCE; i++) {
        char why[REDIS_WHY];
        redisReply *r;
        weft_status_t st = wefti_redis_receive(&b->ear, 0, &r, why);
        if (st == WEFT_ERR_AGAIN)
            break;
        if (st) {
            wefti_redis_disconnect(&b->ear);
            return true;
        }
        news |= is_news(r);
        wefti_redis_reply_free(r);
    }
    return news;
}

bool wefti_redis_wait(void *backend, uint64_t ns)
{
    redis_t *b = (redis_t *)backend;
    uint64_t now = wefti_clock_ns(), until = ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
    bool wanted = ns != WEFT_FOREVER && b->conn.fd < 0 && !b->nudged;
    if (wanted && b->pause.until < until)
        until = b->pause.until;
    if (b->ear.fd >= 0 && now - b->listened_at > LISTEN_NS)
        wefti_redis_disconnect(&b->ear);
    struct pollfd p[3] = {{b->registry->wake_fd, POLLIN, 0}, {b->conn.fd, POLLIN, 0}, {b->ear.fd, POLLIN, 0}};
    if (poll(p, 3, wefti_reg_ms(until <= now ? 0 : until - now)) < 0)
        return false;
    if (p[1].revents) { /* closed, or something that we did not ask for */
        wefti_redis_down(b);
        b->pause.until = 0;
        return true;
    }
    bool news = p[2].revents && hear_news(b);
    if (wanted && wefti_clock_ns() >= b->pause.until) {
        b->nudged = true;
        return true;
    }
    return news;
}
