/* tools/python.c - finds the Python interpreter that a command starts.
 *
 * A name is looked for in PATH, a path is taken as it is. The result is an absolute path. It may be the link in a virtual
 * environment: that is how an interpreter knows its environment. tests/tools/tools_run_check.py and
 * tests/tools/tools_element_serve.py check it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

static char *joined(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
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
