/* store/names.c - the names of a server's blocks, in order.
 *
 * An array of pointers, sorted: looking up is a search by halves, adding and removing move what is behind. With 65536 names
 * that is half a megabyte at worst, which takes less than making the block does. Listing is walking along it.
 * tests/unit/store_names.c. */
#include "store/state.h"

int wefti_store_names_order(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

size_t wefti_store_names_from(const store_names_t *names, const char *name, size_t n, bool *exact_out)
{
    size_t low = 0, high = names->n;
    bool exact = false;
    while (low < high) {
        size_t at = low + (high - low) / 2;
        int order = wefti_store_names_order(names->at[at]->name, names->at[at]->name_len, name, n);
        exact = exact || !order;
        if (order < 0)
            low = at + 1;
        else
            high = at;
    }
    if (exact_out)
        *exact_out = exact;
    return low;
}

store_held_t *wefti_store_names_find(const store_names_t *names, const char *name, size_t n)
{
    bool exact;
    size_t at = wefti_store_names_from(names, name, n, &exact);
    return exact ? names->at[at] : NULL;
}

weft_status_t wefti_store_names_add(store_names_t *names, store_held_t *b)
{
    bool exact;
    size_t at = wefti_store_names_from(names, b->name, b->name_len, &exact);
    if (exact)
        return WEFT_ERR_STATE;
    if (!wefti_grow(&names->at, &names->cap, names->n + 1, sizeof(store_held_t *)))
        return WEFT_ERR_NOMEM;
    memmove(names->at + at + 1, names->at + at, (names->n - at) * sizeof *names->at);
    names->at[at] = b;
    names->n++;
    return WEFT_OK;
}

void wefti_store_names_remove(store_names_t *names, store_held_t *b)
{
    bool exact;
    size_t at = wefti_store_names_from(names, b->name, b->name_len, &exact);
    if (!exact || names->at[at] != b)
        return;
    names->n--;
    memmove(names->at + at, names->at + at + 1, (names->n - at) * sizeof *names->at);
}
