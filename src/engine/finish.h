/* finish.h - why a request ended. */
#ifndef TERN_ENGINE_FINISH_H
#define TERN_ENGINE_FINISH_H

enum finish {
    FINISH_NONE,   /* it has not ended */
    FINISH_STOP,   /* an end token or a stop string */
    FINISH_LENGTH, /* max_tokens, or the context is full */
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FINISH_ERROR,
    N_FINISH
};

const char *finish_name(enum finish f); /* "stop", "length", "cancelled", "deadline", "error" */
#endif
