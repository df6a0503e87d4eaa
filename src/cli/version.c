/* version.c - the version text. The only file that depends on the git commit, so a new commit
 * recompiles nothing else. */
#include "cli/cmd.h"

const char *cmd_version(void)
{
    return TERN_VERSION " ("
#include "commit.inc" /* "d73277e", written by the Makefile */
                        ")";
}
