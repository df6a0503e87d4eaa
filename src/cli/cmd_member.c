/* cmd_member.c - tern member: a process of a gang, started by its leader. It is not for people. */
#include "base/log.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "gang/launch.h"
#include "model/parallel.h"

#include <stdio.h>
#include <unistd.h>

static const struct verb verb = {
    "member",
    "tern member --control FD | --connect HOST:PORT --rank N",
    "A member of a gang: a process with a part of a model. Commands with --tp or --pp start "
    "members by\n"
    "themselves; on other hosts their agent does.",
};

static void leave(void) { _exit(EXIT_FAILED); }

int cmd_member(int argc, char **argv)
{
    const char *address = NULL, *pos;
    int fd = -1, rank = 0, n_pos, rc;
    const struct arg table[] = {
        { "--control", NULL, ARG_INT, &fd, "FD", "descriptor of the control connection" },
        { "--connect", NULL, ARG_STR, &address, "HOST:PORT", "where the leader listens" },
        { "--rank", NULL, ARG_INT, &rank, "N", "number of this member" },
        { 0 },
    };
    struct comm_link *link = NULL;
    struct err e = { 0 };
    char name[32];
    bool helped;

    if (args_parse(&verb, table, argc, argv, &pos, 0, &n_pos, &helped, &e) != OK)
        return cmd_usage("member", &e);
    if (helped) return EXIT_OK;
    if ((fd < 0) == !address) {
        err_set(&e, E_INVALID, "one of --control and --connect: commands with --tp start members");
        return cmd_usage("member", &e);
    }
    gang_leave = leave;
    rc = address ? gang_join_tcp(&link, address, rank, &e) : gang_join(&link, fd, &e);
    if (rc != OK) return cmd_fail(&e);
    snprintf(name, sizeof name, "member %d", link->rank);
    log_set_name(name);
    rc = member_serve(link, &e); /* the link stays open: heartbeats go on until the process ends */
    if (rc == E_WORKER) return EXIT_FAILED; /* the leader says why the gang has ended */
    return cmd_result(rc, &e);
}
