/* gangflags.h - flags of commands that run one model over several members (comm/gang.h). */
#ifndef TERN_CLI_GANGFLAGS_H
#define TERN_CLI_GANGFLAGS_H

#include "gang/launch.h"
#include "model/loadplan.h"

struct gangflags {
    int tp, pp;
    bool ep;
    const char *transport, *hosts, *agent, *listen, *program, *split, *wire, *devices, *comm;
    int step_s;
};

#define GANGFLAGS_DEFAULT              \
    {                                  \
        .tp = 1, .pp = 1, .step_s = 60 \
    }

#define GANG_ARGS(g)                                                                                  \
    { "--tp", NULL, ARG_INT, &(g)->tp, "N", "divide every layer among N members (1)" },               \
        { "--pp", NULL, ARG_INT, &(g)->pp, "N", "divide the layers among N stages (1)" },             \
        { "--ep", NULL, ARG_FLAG, &(g)->ep, NULL, "divide whole experts among the members of --tp" }, \
        { "--split",                                                                                  \
          NULL,                                                                                       \
          ARG_STR,                                                                                    \
          &(g)->split,                                                                                \
          "LIST",                                                                                     \
          "parts of the members, or without --tp of the stages: auto, even, 3,1 (even, or "           \
          "auto)" },                                                                                  \
        { "--hosts", NULL,                                                                            \
          ARG_STR,   &(g)->hosts,                                                                     \
          "LIST",    "hosts of the members, the first this one: a,b (all members on this machine)" }, \
        { "--transport",   NULL, ARG_STR,                                                             \
          &(g)->transport, "T",  "between members: shm, tcp, mpi (shm; with hosts tcp)" },            \
        { "--wire",   NULL, ARG_STR,                                                                  \
          &(g)->wire, "T",  "form of sums between members: f32, q8 for slow networks (f32)" },        \
        { "--devices",   NULL,   ARG_STR,                                                             \
          &(g)->devices, "LIST", "device of each member, or one of all: cuda,cpu (cpu)" },            \
        { "--comm",   NULL,  ARG_STR,                                                                 \
          &(g)->comm, "WAY", "sums between GPUs: auto, host, ipc, nccl (auto)" },                     \
        { "--gang-listen",                                                                            \
          NULL,                                                                                       \
          ARG_STR,                                                                                    \
          &(g)->listen,                                                                               \
          "ADDRESS",                                                                                  \
          "tcp: where members reach the leader (127.0.0.1; with hosts all addresses)" },              \
        { "--agent",   NULL,      ARG_STR,                                                            \
          &(g)->agent, "COMMAND", "hosts: runs a command on host %h (ssh -o BatchMode=yes %h)" },     \
        { "--remote-tern", NULL,   ARG_STR,                                                           \
          &(g)->program,   "PATH", "hosts: tern on the other hosts (tern)" },                         \
    {                                                                                                 \
        "--step-timeout", NULL, ARG_INT, &(g)->step_s, "S",                                           \
            "longest wait of a member for another, in seconds (60)"                                   \
    }

/* E_INVALID names the flag. device: --device of the command, or NULL. */
int gangflags_check(const struct gangflags *f, const char *device, struct err *e);
/* Starts the members, if there are to be any, and says so in the options of the load; *n_threads 0 becomes
 * this process's part of the machine. The gang goes to the runner when the model is opened. argv: of
 * the command, which MPI starts again. */
int gangflags_open(const struct gangflags *f, struct load_opt *o, struct err *e);
/* With transport mpi the command runs once for every member. Called before anything else; true: *code is
 * the exit code of this process, which was a member or has started the others. */
bool gangflags_mpi(const struct gangflags *f, int argc, char **argv, int *code);
#endif
