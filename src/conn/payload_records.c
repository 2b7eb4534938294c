/* conn/payload_records.c - what a peer says of payloads: the records of payload.h and relay.h, by their kind.
 *
 * Everything is checked here for its length, and by whom it concerns for what it says. tests/fuzz/records.c. */
#include <string.h>

#include "conn/chunks.h"

static bool staged(wefti_epx_t *ep, const wefti_wild_t *rec, size_t n, uint64_t total, bool exported)
{
    wefti_export_t export;
    size_t head = WEFTI_STAGED_HEAD + (exported ? sizeof export : 0);
    if (n < head || (exported && !ep->link->lane->ops->peer_open))
        return false; /* too short; or the peer is on another host */
    if (exported)
        wefti_wild_take(&export, wefti_wild_skip(rec, WEFTI_STAGED_HEAD), sizeof export);
    rec = wefti_wild_skip(rec, head);
    n -= head;
    wefti_in_arrived(ep, n ? wefti_wild_u8(rec) : 0, rec, n, total, NULL, exported ? &export : NULL);
    return true;
}

bool wefti_payload_record(wefti_epx_t *ep, uint8_t kind, const wefti_wild_t *rec, size_t n)
{
    uint64_t w[4] = {0};
    size_t head = kind == WEFTI_REC_STAGED ? WEFTI_STAGED_HEAD : sizeof w; /* what is behind it is for the traffic to take */
    if (kind == WEFTI_REC_RELAY) {
        wefti_relay_came(ep, rec, n);
        return true;
    }
    wefti_wild_take(w, rec, n < head ? n : head);
    memcpy(w, &kind, sizeof kind);
    switch (w[0]) { /* the bytes behind the kind are zero, or a flag */
    case WEFTI_REC_STAGED:
        return staged(ep, rec, n, w[1], false);
    case WEFTI_REC_STAGED | 1 << 8:
        return staged(ep, rec, n, w[1], true);
    case WEFTI_REC_CHUNKS:
    case WEFTI_REC_CHUNKS | 1 << 8:
    case WEFTI_REC_CHUNKS | 2 << 8:
    case WEFTI_REC_CHUNKS | 3 << 8:
        if (n != 32)
            return false;
        wefti_chunk_out_asked(ep, w[1], w[2], w[3], (uint8_t)(w[0] >> 8));
        return true;
    case WEFTI_REC_PLACED:
        return wefti_chunk_in_placed(ep, rec, n);
    case WEFTI_REC_BOUNCED:
        return wefti_chunk_in_bounced(ep, rec, n);
    case WEFTI_REC_EMPTIED:
    case WEFTI_REC_EMPTIED | 1 << 8:
        return n == 24 && wefti_chunk_out_emptied(ep, w[1], w[2], w[0] >> 8);
    case WEFTI_REC_RELAY_ANSWER:
    case WEFTI_REC_RELAY_ANSWER | 1 << 8:
        return n == 8 && wefti_relay_answered(ep, w[0] >> 8);
    case WEFTI_REC_STAGED_END:
    case WEFTI_REC_STAGED_END | WEFTI_END_TAKEN << 8:
    case WEFTI_REC_STAGED_END | WEFTI_END_FAILED << 8:
        return n == 16 && wefti_out_staged_end(ep, w[1], w[0] >> 8);
    case WEFTI_REC_TAKE_BACK:
        if (n != 24)
            return false;
        if (w[2])
            wefti_chunk_in_given_up(ep, w[1], w[2]);
        else
            wefti_in_take_back(ep, w[1]);
        return true;
    default:
        return false;
    }
}
