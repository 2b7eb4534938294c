/* fabric/shm/control.c - control records, which wait where the ring has no space, and the transfers that end with them.
 *
 * A control record lies in an object that exists anyway (a pull, an arena that was told), so that an answer never needs memory.
 * Those that find no space wait in lane->out, in order. Transfers that have ended are kept to be used again, WEFTI_SHM_SPARES of
 * each kind. */
#include "fabric/shm/internal.h"

/* --- objects ------------------------------------------------------------------------------------------------------ */

void wefti_shm_send_free(wefti_shm_lane_t *lane, wefti_shm_send_t *s)
{
    if (wefti_list_linked(&s->link))
        wefti_list_remove(&s->link);
    wefti_slots_remove(&lane->send_ids, s->id);
    wefti_spares_put(&wefti_shm_transport_of(lane)->spare_sends, s, WEFTI_SHM_SPARES);
}

/* Take it off everything but lane->out. */
static void pull_unlink(wefti_shm_pull_t *p)
{
    if (wefti_list_linked(&p->link))
        wefti_list_remove(&p->link);
    if (p->arena)
        wefti_shm_arena_drop(p->arena);
    p->arena = NULL;
    wefti_map_take(&p->lane->pull_ids, p->id);
}

void wefti_shm_pull_free(wefti_shm_pull_t *p)
{
    pull_unlink(p);
    if (wefti_list_linked(&p->ctl.link))
        wefti_list_remove(&p->ctl.link);
    wefti_spares_put(&wefti_shm_transport_of(p->lane)->spare_pulls, p, WEFTI_SHM_SPARES);
}

/* --- control records ---------------------------------------------------------------------------------------------- */

static bool ctl_put(wefti_shm_lane_t *lane, const wefti_shm_ctl_t *ctl)
{
    wefti_shm_ctl_record_t *rec = wefti_shm_lane_reserve(lane, sizeof *rec);
    if (!rec)
        return false;
    rec->id = ctl->id;
    rec->arg = ctl->arg;
    wefti_shm_lane_commit(lane, sizeof *rec, ctl->type);
    return true;
}

void wefti_shm_ctl_sent(wefti_shm_lane_t *lane, wefti_shm_ctl_t *ctl)
{
    if (ctl->ends == WEFTI_SHM_ENDS_PULL) {
        wefti_shm_pull_free(wefti_container_of(ctl, wefti_shm_pull_t, ctl));
    } else if (ctl->ends == WEFTI_SHM_ENDS_TOLD) {
        lane->n_gone_out--;
        wefti_shm_told_free(lane, wefti_container_of(ctl, wefti_shm_told_t, ctl));
    }
}

void wefti_shm_ctl_send(wefti_shm_lane_t *lane, wefti_shm_ctl_t *ctl, uint32_t type, uint64_t id, uint64_t arg)
{
    ctl->type = type;
    ctl->id = id;
    ctl->arg = arg;
    if (wefti_list_empty(&lane->out) && ctl_put(lane, ctl))
        wefti_shm_ctl_sent(lane, ctl);
    else
        wefti_list_push_back(&lane->out, &ctl->link);
}

unsigned wefti_shm_ctl_flush(wefti_shm_lane_t *lane)
{
    unsigned n = 0;
    wefti_list_t *it;
    while ((it = wefti_list_first(&lane->out))) {
        wefti_shm_ctl_t *ctl = wefti_container_of(it, wefti_shm_ctl_t, link);
        if (!ctl_put(lane, ctl))
            break;
        wefti_list_remove(it);
        wefti_shm_ctl_sent(lane, ctl);
        n++;
    }
    return n;
}

void wefti_shm_pull_answer(wefti_shm_pull_t *p, uint64_t answer)
{
    pull_unlink(p);
    p->state = WEFTI_SHM_ANSWERED;
    if (p->lane->state != WEFTI_SHM_LANE_UP) {
        wefti_shm_pull_free(p);
        return;
    }
    p->ctl.ends = WEFTI_SHM_ENDS_PULL;
    wefti_shm_ctl_send(p->lane, &p->ctl, WEFTI_SHM_DONE, p->id, answer);
}
