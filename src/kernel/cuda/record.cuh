/* record.cuh - launching a record: pinned staging memory of copies, captured graphs, events of
 * steps in flight.
 *
 * The backend's state beside the device itself. cuda.cu calls it for copies, flush, throttle and
 * sync. All host memory here is allocated by cu_record_open; a step allocates nothing. */
#ifndef TERN_KERNEL_CUDA_RECORD_CUH
#define TERN_KERNEL_CUDA_RECORD_CUH

#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/cuda/graphs.h"
}

#define RECORD_OPS 4096
/* Larger steps keep the device busy for longer than their launches take; steps of fewer operations
 * are not worth a graph. */
#define GRAPH_TOKENS 64
#define GRAPH_OPS 12 /* a layer between experts on the CPU has 15 or more */
#define MAX_PENDING 64
#define MAX_PINNED 16
#define STAGING_BYTES ((size_t)8 << 20)
#define MAX_AHEAD 4 /* parts of a step whose end can be waited for */

/* A download to memory that is not pinned: the host copies it after the wait. */
struct cu_pending_copy {
    void *dst;
    const char *from;
    size_t bytes;
};

struct cu_pinned {
    char *p;
    size_t bytes;
};

struct cu_upload;

struct cu_record {
    struct record rec;
    bool fuse, graphs; /* switched on: see TERN_CUDA_FUSE, TERN_CUDA_GRAPHS */
    bool partial;      /* a part of this step was launched already: the rest cannot be a graph */
    char *upload_buf, *download_buf; /* pinned, STAGING_BYTES each */
    size_t upload_used, download_used;
    struct cu_pending_copy pending[MAX_PENDING];
    int n_pending;
    struct cu_pinned pinned[MAX_PINNED];
    int n_pinned;
    /* The jobs of the record that is being launched, as the kernels take them. */
    struct linear *jobs;
    int at;            /* index of the operation that is being launched */
    unsigned *tickets; /* on the device: see cu_router; NULL: no memory */
    struct graphs cache;
    uint64_t n_replays, n_captures, n_steps;
    /* Since the last wait: when the first part started, when the last MAX_AHEAD parts ended. */
    cudaEvent_t started, done[MAX_AHEAD];
    int n_parts;
    int n_capture_failures;
    bool lost; /* the device does not work any more in this process */
    struct cu_upload *upload;
};

/* launch.cu: launches, in order, every operation of the record that is not absorbed. */
void cu_launch_all(struct cuda *c);

int cu_record_open(struct cuda *c, struct err *e);
void cu_record_close(struct cuda *c);
/* Launches everything recorded and clears the record. RUN_FULL: because it is full; operations that
 * follow may read its intermediates. RUN_PART: a part of a step whose intermediates nobody reads
 * later. RUN_STEP: likewise, and the step ends here. */
enum cu_run { RUN_FULL, RUN_PART, RUN_STEP };
void cu_record_run(struct cuda *c, enum cu_run how);
void cu_record_upload(struct cuda *c, void *dst, const void *src, size_t bytes);
void cu_record_download(struct cuda *c, void *dst, const void *src, size_t bytes);
/* Launches everything and waits for the device. Nothing is recorded or in flight afterwards. */
void cu_record_wait(struct cuda *c, enum cu_run how);
/* Waits until at most `ahead` of the parts launched since the last wait are in flight. */
void cu_record_throttle(struct cuda *c, int ahead);
/* Destroys all captured graphs: memory that they contain the addresses of is about to move. */
void cu_record_drop_graphs(struct cuda *c);

/* Weights onto the device (upload.cu). add: notes a weight. finish: packs and copies all noted
 * weights. drop: forgets one weight; the last of those that came together frees their memory. */
int upload_add(struct cuda *c, struct weight *w, struct err *e);
int upload_finish(struct cuda *c, struct err *e);
void upload_drop(struct cuda *c, struct weight *w);
void upload_close(struct cuda *c);

struct cu_profile { /* the first member of profile.cu's struct profile */
    void (*begin)(struct cuda *c, const char *name);
    void (*end)(struct cuda *c);
};
void profile_open(struct cuda *c, bool wanted); /* or if TERN_CUDA_PROFILE is set */
void profile_collect(struct cuda *c);           /* after a sync */
void profile_close(struct cuda *c);
#endif
