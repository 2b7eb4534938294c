/* tests/unit/base_changed.c - base/changed.h: what counts as a change of a file. */
#include "base/changed.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static char path[80], other[90];

static void names(void)
{
    snprintf(path, sizeof path, "base_changed.%d", (int)getpid());
    snprintf(other, sizeof other, "%s.new", path);
}

static void fill(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    CHECK(f);
    fputs(text, f);
    CHECK(!fclose(f));
}

/* The clock of a file system has ticks: write until one has passed. False: no change was ever seen. */
static bool seen(wefti_changed_t *c, const char *text)
{
    for (int i = 0; i < 2000; i++) {
        fill(path, text);
        if (wefti_changed_look(c, path))
            return true;
        usleep(5000);
    }
    return false;
}

TEST(a_file_that_stays_has_not_changed)
{
    wefti_changed_t c = {0};
    names();
    fill(path, "a");
    CHECK(!wefti_changed_look(&c, path)); /* the first look */
    CHECK(!wefti_changed_look(&c, path));
    unlink(path);
}

TEST(what_is_written_changes_it_even_if_the_size_stays)
{
    wefti_changed_t c = {0};
    names();
    fill(path, "a");
    CHECK(!wefti_changed_look(&c, path));
    fill(path, "longer");
    CHECK(wefti_changed_look(&c, path));
    CHECK(!wefti_changed_look(&c, path));
    CHECK(seen(&c, "shorte"));
    unlink(path);
}

TEST(another_file_of_that_name_is_a_change)
{
    wefti_changed_t c = {0};
    names();
    fill(path, "a");
    fill(other, "b");
    CHECK(!wefti_changed_look(&c, path));
    CHECK(!rename(other, path));
    CHECK(wefti_changed_look(&c, path));
    CHECK(!wefti_changed_look(&c, path));
    unlink(path);
}

TEST(an_old_file_with_its_old_time_is_a_change)
{
    wefti_changed_t c = {0};
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    names();
    fill(path, "a");
    CHECK(!utimensat(AT_FDCWD, path, times, 0));
    CHECK(!wefti_changed_look(&c, path));
    bool changed = false;
    for (int i = 0; i < 2000 && !changed; i++) { /* as `cp -p` does */
        usleep(5000);
        fill(path, "b");
        CHECK(!utimensat(AT_FDCWD, path, times, 0));
        changed = wefti_changed_look(&c, path);
    }
    CHECK(changed);
    unlink(path);
}

TEST(a_file_that_comes_or_vanishes_has_changed)
{
    wefti_changed_t c = {0};
    names();
    unlink(path);
    CHECK(!wefti_changed_look(&c, path));
    CHECK(!wefti_changed_look(&c, path));
    fill(path, "a");
    CHECK(wefti_changed_look(&c, path));
    unlink(path);
    CHECK(wefti_changed_look(&c, path));
    CHECK(!wefti_changed_look(&c, path));
}
