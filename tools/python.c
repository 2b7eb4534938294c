/* tools/python.c - finds the Python interpreter that a command starts.
 *
 * A path is taken as it is. A name is looked for beside this command where that is a virtual environment, since the packages
 * were installed there with it, and then in PATH. The result is an absolute path. It may be the link in a virtual environment:
 * that is how an interpreter knows its environment. tests/tools/tools_run_check.py, tools_element_serve.py and
 * tests/python/test_wheel.py check it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

static char *joined(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* The interpreter of that name in the virtual environment this command is installed in, or NULL. */
static char *beside_us(const char *name)
{
    char self[4096], *found = NULL, *config = NULL;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return NULL;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    config = joined(self, "../pyvenv.cfg");
    if (config && !access(config, R_OK))
        found = joined(self, name);
    free(config);
    if (found && access(found, X_OK)) {
        free(found);
        found = NULL;
    }
    return found;
}

char *tool_find_python(const char *name)
{
    const char *path = getenv("PATH");
    char *copy, *rest, *part, *found = NULL;
    if (strchr(name, '/')) {
        if (access(name, X_OK))
            return NULL;
        if (*name == '/')
            return strdup(name);
        copy = getcwd(NULL, 0);
        found = copy ? joined(copy, name) : NULL;
        free(copy);
        return found;
    }
    if ((found = beside_us(name)))
        return found;
    copy = rest = strdup(path ? path : "/usr/bin:/bin");
    while (copy && !found && (part = strsep(&rest, ":"))) {
        char *file = joined(part, name);
        if (file && *part == '/' && !access(file, X_OK)) /* relative folders of PATH are not used */
            found = file;
        else
            free(file);
    }
    free(copy);
    return found;
}
