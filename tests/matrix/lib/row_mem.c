/* tests/matrix/lib/row_mem.c - rows of weft/mem.h. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "row.h"

/* --- kinds ---------------------------------------------------------------------------------------------------------------- */

ROW(weft_mem_kind_find, ON_NOTHING)
{
    turn_text(t, weft_mem_kind_find("host")->name);
}

ROW(weft_mem_host, ON_NOTHING)
{
    turn_text(t, weft_mem_host()->name);
}

ROW(weft_mem_kind_of, ON_NOTHING)
{
    turn_text(t, weft_mem_kind_of(t)->name);
}

static void saw(const weft_mem_kind_t *kind, void *user)
{
    turn_text((turn_t *)user, kind->name);
}

ROW(weft_mem_kind_each, ON_NOTHING)
{
    weft_mem_kind_each(saw, t);
}

static weft_status_t gives(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    (void)kind;
    (void)n;
    (void)ptr_out;
    return WEFT_ERR_NOMEM;
}

static void takes(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    (void)kind;
    (void)ptr;
    (void)n;
}

/* A kind of its own for every turn. */
static const weft_mem_kind_t *new_kind(turn_t *t)
{
    static _Atomic unsigned kinds;
    weft_mem_kind_t *kind = (weft_mem_kind_t *)turn_room(t, sizeof *kind);
    char *name = (char *)turn_room(t, 32);
    snprintf(name, 32, "row-%u", atomic_fetch_add(&kinds, 1));
    *kind = (weft_mem_kind_t){.size = sizeof *kind, .name = name, .flags = WEFT_MEM_CPU, .alloc = gives, .free = takes};
    return kind;
}

ROW(weft_mem_kind_add, ON_NOTHING)
{
    const weft_mem_kind_t *kind = new_kind(t);
    if (turn_status(t, weft_mem_kind_add(kind)))
        weft_mem_kind_remove(kind);
}

ROW(weft_mem_kind_remove, ON_NOTHING)
{
    const weft_mem_kind_t *kind = new_kind(t);
    if (turn_status(t, weft_mem_kind_add(kind)))
        turn_status(t, weft_mem_kind_remove(kind));
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

ROW(weft_mem_alloc, ON_NOTHING)
{
    void *ptr;
    if (turn_status(t, weft_mem_alloc(NULL, 64, &ptr)))
        weft_mem_free(NULL, ptr, 64);
}

ROW(weft_mem_free, ON_NOTHING)
{
    void *ptr;
    if (turn_status(t, weft_mem_alloc(NULL, 64, &ptr)))
        weft_mem_free(NULL, ptr, 64);
}

ROW(weft_mem_copy, ON_NOTHING)
{
    char to[8], from[8] = "1234567";
    turn_status(t, weft_mem_copy(to, NULL, from, NULL, sizeof to));
}

ROW(weft_mem_device, ON_NOTHING)
{
    weft_mem_device(t);
}

ROW(weft_mem_settle, ON_NOTHING)
{
    turn_status(t, weft_mem_settle(t, true));
}

/* --- pools ---------------------------------------------------------------------------------------------------------------- */

ROW(weft_pool_new, ON_RUNTIME)
{
    weft_pool_t *pool;
    if (turn_status(t, weft_pool_new(s->rt, NULL, &pool)))
        weft_pool_free(pool);
}

ROW(weft_pool_free, NEEDS_POOL | FREES)
{
    static _Atomic unsigned putting; /* another thread may have taken what is out, and not given it back yet */
    atomic_fetch_add(&putting, 1);
    weft_pool_put(s->pool, atomic_exchange(&s->pooled, NULL));
    atomic_fetch_sub(&putting, 1);
    while (atomic_load(&putting))
        sched_yield();
    turn_status(t, weft_pool_free(s->pool));
}

ROW(weft_pool_get, NEEDS_POOL)
{
    void *ptr;
    if (turn_status(t, weft_pool_get(s->pool, 64, &ptr)))
        weft_pool_put(s->pool, ptr);
}

ROW(weft_pool_put, NEEDS_POOL)
{
    weft_pool_put(s->pool, atomic_exchange(&s->pooled, NULL));
}

ROW(weft_pool_trim, NEEDS_POOL)
{
    weft_pool_trim(s->pool);
}

ROW(weft_pool_kind, NEEDS_POOL)
{
    weft_pool_kind(s->pool);
}

ROW(weft_pool_get_stats, NEEDS_POOL)
{
    weft_pool_stats_t stats = WEFT_POOL_STATS_INIT;
    weft_pool_get_stats(s->pool, &stats);
}

/* --- registration --------------------------------------------------------------------------------------------------------- */

ROW(weft_mem_register, ON_RUNTIME)
{
    weft_mem_reg_t *reg;
    if (turn_status(t, weft_mem_register(s->rt, turn_room(t, 4096), 4096, &reg)))
        weft_mem_unregister(reg, true);
}

ROW(weft_mem_unregister, NEEDS_REG | ONCE)
{
    weft_mem_unregister(atomic_exchange(&s->reg, NULL), true);
}

ROW(weft_mem_get_reg_stats, ON_RUNTIME)
{
    weft_mem_reg_stats_t stats = WEFT_MEM_REG_STATS_INIT;
    weft_mem_get_reg_stats(s->rt, &stats);
}
