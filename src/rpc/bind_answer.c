/* rpc/bind_answer.c - the server's side of binding: it finds the function that a client asks for, or says why there is none.
 *
 * Names and signatures are compared here, once; afterwards calls have a slot and a check (function.c). bind_ask.c is the other
 * side. */
#include <stdio.h>

#include "base/bytes.h"
#include "base/nearest.h"
#include "rpc/serve.h"

/* What a client asks for. */
typedef struct wanted {
    uint64_t hash;                                              /* of the signature; 0: any */
    uint32_t number;                                            /* 0: by name */
    char service[RPC_NAME], instance[RPC_NAME], name[RPC_NAME]; /* "": any */
    const char *text;                                           /* the signature or name, text_len bytes */
    size_t text_len;
} wanted_t;

/* What was found. */
typedef struct search {
    rpc_function_t *f;      /* the function */
    rpc_function_t *other;  /* of that name, with another signature */
    bool service, draining; /* there is such a service; there is one, but it takes no calls */
    bool closed;            /* one that is being closed, or was */
    char nearest[RPC_NAME]; /* of names like the one asked for */
    size_t distance;
} search_t;

static bool read_name(wefti_reader_t *r, size_t n, char out[RPC_NAME])
{
    const void *p = n < RPC_NAME ? wefti_get_bytes(r, n) : NULL;
    if (!p)
        return false;
    memcpy(out, p, n);
    out[n] = '\0';
    return !memchr(out, 0, n);
}

static bool read_bind(const weft_am_t *am, wanted_t *w)
{
    rpc_bind_t b;
    wefti_reader_t r = wefti_reader((const uint8_t *)am->header + sizeof(rpc_head_t), am->header_len - sizeof(rpc_head_t));
    const void *p = wefti_get_bytes(&r, sizeof b);
    memset(w, 0, sizeof *w);
    if (!p || am->len)
        return false;
    memcpy(&b, p, sizeof b);
    if (wefti_reader_left(&r) != (size_t)b.service_len + b.instance_len + b.text_len || (b.number ? b.hash : !b.text_len))
        return false;
    if (!read_name(&r, b.service_len, w->service) || !read_name(&r, b.instance_len, w->instance))
        return false;
    w->hash = b.hash;
    w->number = b.number;
    w->text = (const char *)r.at;
    w->text_len = b.text_len;
    const char *paren = (const char *)memchr(w->text, '(', w->text_len);
    return read_name(&r, paren ? (size_t)(paren - w->text) : w->text_len, w->name);
}

static void near(search_t *s, const char *wanted, const char *name)
{
    size_t d = wefti_word_distance(wanted, name);
    if (wefti_word_near(d, name) && (!s->nearest[0] || d < s->distance)) {
        snprintf(s->nearest, sizeof s->nearest, "%s", name);
        s->distance = d;
    }
}

static void look(search_t *s, const weft_service_t *service, const wanted_t *w)
{
    s->service = true;
    if (service->draining) {
        s->draining = true;
        return;
    }
    rpc_function_t *f = wefti_rpc_function_find(service, w->name, w->number);
    if (f && (!w->hash || w->hash == weft_sig_hash(f->sig)))
        s->f = f;
    else if (f)
        s->other = f;
    if (f || w->number)
        return;
    wefti_list_each(l, &service->functions)
        near(s, w->name, weft_sig_name(wefti_container_of(l, rpc_function_t, link)->sig));
}

/* Under rs->lock. */
static void search(rpc_state_t *rs, const wanted_t *w, search_t *s)
{
    search_t services = {0};
    memset(s, 0, sizeof *s);
    if (!strncmp(w->name, "weft.", 5)) {
        look(s, rs->own, w); /* every service has those */
        return;
    }
    wefti_list_each(l, &rs->services) {
        const weft_service_t *service = wefti_container_of(l, weft_service_t, link);
        if (w->service[0] && strcmp(w->service, service->name)) {
            if (!service->ended)
                near(&services, w->service, service->name);
            continue;
        }
        if (w->instance[0] && strcmp(w->instance, service->instance))
            continue;
        if (service->ended) {
            s->closed = true;
            continue;
        }
        look(s, service, w);
        if (s->f)
            return;
    }
    if (s->service) {
        /* an open service of that name answers for it; a caller that names none may mean the one that closes */
        s->draining = s->draining || (s->closed && !w->service[0]);
        return;
    }
    for (uint32_t i = 0; i < RPC_CLOSED && !w->instance[0]; i++)
        s->closed = s->closed || (rs->closed[i][0] && (!w->service[0] || !strcmp(w->service, rs->closed[i])));
    memcpy(s->nearest, services.nearest, sizeof s->nearest);
}

static weft_code_t refusal(const wanted_t *w, const search_t *s, char *buf, size_t cap)
{
    char what[RPC_NAME + 16], hint[RPC_NAME + 32] = "";
    if (w->number)
        snprintf(what, sizeof what, "number %u", w->number);
    else
        snprintf(what, sizeof what, "\"%s\"", w->name);
    if (s->nearest[0])
        snprintf(hint, sizeof hint, "; there is \"%s\"", s->nearest);
    if (s->other) {
        snprintf(buf, cap, "the signatures do not agree: the caller has \"%.*s\", the server \"%s\"", (int)w->text_len, w->text,
                 weft_sig_text(s->other->sig));
        return WEFT_CODE_FAILED_PRECONDITION;
    }
    if (s->draining || (s->closed && !s->service)) {
        snprintf(buf, cap, "the service%s%s takes no more calls: it %s", w->service[0] ? " " : "", w->service,
                 s->draining ? "is closing" : "was closed");
        return WEFT_CODE_UNAVAILABLE;
    }
    if (s->service)
        snprintf(buf, cap, "there is no function %s here%s", what, hint);
    else if (w->service[0])
        snprintf(buf, cap, "there is no service \"%s\"%s%s%s here%s", w->service, w->instance[0] ? " with the instance \"" : "",
                 w->instance, w->instance[0] ? "\"" : "", hint);
    else
        snprintf(buf, cap, "there is no function %s: no service is open here", what);
    /* an instance that is not here has left: another may take the call */
    return w->instance[0] && !s->service ? WEFT_CODE_UNAVAILABLE : WEFT_CODE_UNIMPLEMENTED;
}

/* Text with parts from the peer, which people will read: no control characters. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
            *text = '?';
}

void wefti_rpc_bind(rpc_state_t *rs, weft_am_t *am, const rpc_head_t *head)
{
    wanted_t w;
    search_t s;
    rpc_msg_t msg;
    rpc_bound_t bound = {0};
    char words[RPC_MESSAGE_MAX];
    if (!read_bind(am, &w)) {
        wefti_ep_protocol_error(am->ep, "a question for a function that cannot be read");
        return;
    }
    rpc_head_t answer = rpc_head(RPC_BOUND, head->call);
    const char *text = words;
    pthread_mutex_lock(&rs->lock);
    search(rs, &w, &s);
    weft_status_t may = s.f ? wefti_rpc_rules_bind(rs, am->ep, s.f) : WEFT_OK;
    if (may) {
        bound.code = may == WEFT_ERR_PERMISSION ? WEFT_CODE_PERMISSION_DENIED : WEFT_CODE_RESOURCE_EXHAUSTED;
        snprintf(words, sizeof words, "%s", weft_last_error());
        make_printable(words);
        rpc_count(&s.f->service->stats.refused, 1);
    } else if (s.f) {
        text = weft_sig_text(s.f->sig);
        answer.slot = s.f->slot;
        answer.check = s.f->check;
        bound.number = s.f->number;
        bound.epoch = s.f->service->epoch;
    } else {
        bound.code = refusal(&w, &s, words, sizeof words);
        make_printable(words);
        if (s.other)
            rpc_count(&s.other->service->stats.refused, 1);
    }
    rpc_msg_init(&msg, answer);
    rpc_msg_put(&msg, &bound, sizeof bound);
    rpc_msg_put(&msg, text, strlen(text));
    pthread_mutex_unlock(&rs->lock);
    (void)wefti_rpc_send_back(am, false, &msg);
}
