/* Every public function has a row in the matrix, every row has a function, and calls it. */
#include "cell.h"
#include "test.h"

typedef struct gaps {
    char names[4096]; /* each with a space before it */
    unsigned n;
} gaps_t;

static void gap(gaps_t *g, const char *name, const char *why)
{
    size_t len = strlen(g->names);
    snprintf(g->names + len, sizeof g->names - len, "%s %s", name, why);
    fprintf(stderr, "%s: %s\n", name, why);
    g->n++;
}

/* Where functions (of the headers) and rows do not go together. */
static gaps_t look(const function_t *all, size_t n, const row_t *first)
{
    gaps_t g = {"", 0};
    for (size_t i = 0; i < n; i++) {
        unsigned found = 0;
        for (const row_t *row = first; row; row = row->next)
            found += !strcmp(row->name, all[i].name);
        if (found != 1)
            gap(&g, all[i].name, found ? "has several rows" : "has no row: write one into tests/matrix/lib");
        else if (!all[i].called)
            gap(&g, all[i].name, "is not called by its row");
    }
    for (const row_t *row = first; row; row = row->next) {
        size_t i = 0;
        while (i < n && strcmp(row->name, all[i].name))
            i++;
        if (i == n)
            gap(&g, row->name, "has a row, and is no public function");
    }
    return g;
}

TEST(every_public_function_has_a_row_that_calls_it)
{
    CHECK(functions_n > 200);
    CHECK_EQ(look(functions, functions_n, rows).n, 0);
}

TEST(each_gap_is_noticed)
{
    static const function_t all[] = {{"weft_a", "a.h", true}, {"weft_b", "b.h", true}, {"weft_c", "c.h", false}};
    row_t d = {"weft_d", 0, NULL, NULL}, c = {"weft_c", 0, NULL, &d}, a = {"weft_a", 0, NULL, &c};
    gaps_t g = look(all, 3, &a);
    CHECK_EQ(g.n, 3);
    CHECK(strstr(g.names, "weft_b has no row"));
    CHECK(strstr(g.names, "weft_c is not called"));
    CHECK(strstr(g.names, "weft_d has a row, and is no public function"));
    d.name = "weft_a";
    g = look(all, 1, &a);
    CHECK(strstr(g.names, "weft_a has several rows"));
}
