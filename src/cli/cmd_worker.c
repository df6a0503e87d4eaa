/* cmd_worker.c - tern worker: the process of one model, started by `tern serve --isolate`. It is not
 * for people: its first flags are the descriptor of the server's socket and the name of the model, the
 * others are settings of the server. */
#include "base/log.h"
#include "cli/cmd.h"
#include "cli/mpijob.h"
#include "gang/mpilink.h"
#include "model/parallel.h"
#include "server/settings.h"
#include "server/workerflags.h"
#include "worker/child.h"
#include "worker/process.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The gang of the model has ended. */
static void leave(void) { _exit(EXIT_FAILED); }

/* SIGALRM: threads of the model did not end. */
static void on_end_timeout(int sig)
{
    (void)sig;
    _exit(EXIT_FAILED);
}

static void set_log(const struct settings *s)
{
    enum log_level level;

    if (log_level_by_name(str_c(s->log_level), &level)) log_set_level(level);
    log_set_format(strcmp(s->log_format, "json") == 0 ? LOG_JSON : LOG_TEXT);
}

static bool is_mpi(const struct settings *s)
{
    return s->tp * s->pp > 1 && strcmp(s->transport, "mpi") == 0;
}

/* A rank of an MPI job other than the first. */
static int serve_member(struct err *e)
{
    struct comm_link *link;
    int rc = mpilink_open(&link, e);

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* mpirun, or its agent here, has gone */
    if (rc != OK) return cmd_fail(e);
    rc = member_serve(link, e);
    comm_link_close(link);
    return rc == E_WORKER ? EXIT_FAILED : cmd_result(rc, e);
}

/* The server has started this process; it starts the job, whose ranks are this command again. true: *code
 * is the exit code of this process, which is not the leader. */
static bool run_job(const struct settings *s, int argc, char **argv, int *code, struct err *e)
{
    static const int fds[] = { PROCESS_FD, PROCESS_SHARED_FD, PROCESS_PARK_FD };
    struct mpijob j = { .n = (int)(s->tp * s->pp),
                        .hosts = *s->hosts ? s->hosts : NULL,
                        .program = *s->hosts ? s->remote_tern : NULL };
    int rank;

    if (!mpijob_is_ours(&rank)) {
        *code = mpijob_run(&j, argc, argv, fds, 3);
        return true;
    }
    *code = rank ? serve_member(e) : mpijob_take(e) != OK ? cmd_fail(e) : EXIT_OK;
    return rank || *code != EXIT_OK;
}

int cmd_worker(int argc, char **argv)
{
    struct child_opt o = { 0 };
    struct err e = { 0 };
    struct settings s;
    const char *id;
    bool helped;
    int rc;

    if (argc < 5 || strcmp(argv[1], "--fd") != 0 || strcmp(argv[3], "--id") != 0 ||
        (o.fd = atoi(argv[2])) < 3) {
        err_set(&e, E_INVALID, "tern serve --isolate starts workers by itself");
        return cmd_usage("worker", &e);
    }
    id = argv[4];
    argv[4] = argv[0];
    if (settings_load(&s, argc - 4, argv + 4, &helped, &e) != OK || settings_gang(&s, &e) != OK)
        return cmd_usage("worker", &e);
    argv[4] = (char *)id;
    if (is_mpi(&s) && run_job(&s, argc, argv, &rc, &e)) return rc;
    o.end_signal = is_mpi(&s) ? MPIJOB_END : 0;
    signal(SIGALRM, on_end_timeout);
    set_log(&s);
    log_set_name(id);
    o.build = cmd_version();
    o.leave = leave;
    workerflags_engine(&s, &o.pool.engine);
    o.pool.engine.place_loose = true; /* the server may have other models */
    workerflags_api(&s, &o.api);
    o.pool.paths = s.models;
    o.pool.aliases = &id;
    o.pool.n = 1;
    o.pool.chat_template = s.chat_template;
    o.pool.warm = s.warm;
    workerflags_park(&s, &o.pool.park);
    o.pool.park.has_fd = true;
    o.pool.park.fd = PROCESS_PARK_FD;
    if (o.pool.park.where == POOL_PARK_FILE && !process_has_park())
        o.pool.park.where = POOL_PARK_OFF;
    o.no_sandbox = !s.sandbox;
    o.max_body_bytes = (size_t)s.max_body;
    o.max_unread_bytes = (size_t)s.max_unread;
    rc = child_run(&o, &e);
    if (rc != OK) log_error("%s", e.msg);
    settings_release(&s);
    return rc == OK ? EXIT_OK : EXIT_FAILED;
}
