/* gangcard.h - what each member of a gang is, and whether such members can work together.
 *
 * Before anything is loaded the leader asks every member for its card: version, machine, device. It
 * compares them with what the model and the division need, and refuses by name what cannot work:
 *
 *   versions          all the same
 *   a device          has to be there
 *   reference kernels on CPUs only
 *   --ep              on CPUs only: a GPU has no place for experts that are elsewhere
 *   one stage         with experts: one kind of device and of kernels, as every member chooses the
 *                     experts by itself and all must choose the same; without: types of weights that
 *                     all of its devices read, or a matrix would be of two types
 *   --comm ipc        GPUs of one machine; sums travel as F32
 *   --comm nccl       GPUs, another one for each member; sums travel as F32
 *
 * Stages may be of any devices: rows go from one to the next through the host.
 *
 * A card also says how many threads compute and how much memory is free, and on demand how fast the
 * device is: by these the leader divides the model (gangsplit.h). The environment variables
 * TERN_GANG_SPEEDS ("3,1") and TERN_GANG_MEMORY (MiB, "4096,2048"), a number for each rank, replace
 * what a member finds. */
#ifndef TERN_MODEL_GANGCARD_H
#define TERN_MODEL_GANGCARD_H

#include "comm/gang.h"
#include "kernel/backend.h"
#include "model/gangspeed.h"

#define GANGCARD_MAGIC 0x44434754u /* "TGCD" */

/* The leader's question, and a member's answer: structs as they lie in memory. magic, size and version
 * stay where they are in all versions. */
struct gangask {
    uint32_t magic, size;
    char version[28];
    uint32_t reference;
    uint32_t measure;  /* 1: how fast are you? */
    int32_t n_threads; /* of CPU kernels; 0: each member's cores */
    char isa[16];      /* of CPU kernels */
    char devices[COMM_MAX][GANG_DEVICE];
};

struct gangcard {
    uint32_t magic, size;
    char version[28];
    int32_t code; /* OK, or the reason why this member cannot take part, in text */
    char text[256];
    char host[40]; /* the machine */
    struct device_card dev;
    int32_t threads;    /* of the CPU kernels; a GPU: 0 */
    int32_t own_memory; /* 1: memory_bytes are the member's alone, whoever else is on its machine */
    uint64_t memory_bytes;  /* that the member's part may take; UINT64_MAX: not known */
    struct gangspeed speed; /* zero: not measured */
};

/* What the model and its division need. */
struct gangneeds {
    bool experts;
    bool reference;
    uint64_t types; /* of its weights, bit 1 << type */
};

/* Fills all but `measure`. */
void gangask_fill(struct gangask *a, const struct gang_shape *shape, const struct backend_opt *opt);
/* E_FORMAT, E_UNSUPPORTED: bytes that are no question, or one of another version. */
int gangask_read(struct gangask *a, const void *p, size_t n, struct err *e);
/* The card of member `rank`. A device that is not there is a card that says so. */
void gangcard_fill(struct gangcard *c, const struct gangask *a, int rank);
int gangcard_check(const struct gangcard *c, int rank, struct err *e);

/* cards [tp * pp], each checked. E_UNSUPPORTED, E_INVALID name members, devices and the reason. */
/* Do all members have the same kind of device, and as many threads? */
bool gangcards_alike(const struct gangcard *cards, int n);
/* memories[r]: a number for each memory, 0 and up, the same for members whose parts lie in the same. */
void gangcards_memories(const struct gangcard *cards, int n, int *memories);
int gangcards_match(const struct gangcard *cards, const struct gang_shape *shape,
                    const struct gangneeds *needs, struct err *e);
#endif
