/* tools/main.c - the `weft` command: its list of commands, and the exit status.
 *
 * Exit status: 0 done, 1 it could not be done, 2 the command line was not understood. A command whose output could not be
 * written has failed. tests/tools/tools_output.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <weft/config.h>

#include "common.h"

static const tool_command_t *const commands[] = {
    &tool_call_command,
    &tool_completion_command,
    &tool_element_command,
    &tool_info_command,
    &tool_key_command,
    &tool_mem_command,
    &tool_perf_command,
    &tool_policy_command,
    &tool_run_command,
    &tool_serve_command,
    NULL,
};

const tool_command_t tool_root = {
    .name = "weft",
    .full_name = "weft",
    .usage = "COMMAND [options]",
    .commands = commands,
    .footer = "  weft help COMMAND    what a command does, with all of its options\n"
              "  weft --version       the version of the library",
};

/* A closed standard descriptor would be the next one that is opened, and text for people would go there. So /dev/null takes its
 * place, opened such that reading or writing it fails as it would on a closed one. */
static bool fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            tool_error("/dev/null cannot be opened for a standard descriptor that is closed: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        tool_command_help(&tool_root, stderr);
        return TOOL_USAGE;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("weft %s\n", weft_version());
        return TOOL_OK;
    }
    return tool_command_run(&tool_root, argc, argv);
}

int main(int argc, char **argv)
{
    if (!fill_standard_fds())
        return TOOL_FAILED;
    int rc = run(argc, argv);
    if (!rc && (fflush(stdout) || ferror(stdout) || (close(STDOUT_FILENO) && errno != EBADF))) {
        tool_error("stdout cannot be written");
        rc = TOOL_FAILED;
    }
    return rc;
}
