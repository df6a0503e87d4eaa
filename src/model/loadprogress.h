/* loadprogress.h - how far the weights of a model are loaded, told to whoever waits for them. */
#ifndef TERN_MODEL_LOADPROGRESS_H
#define TERN_MODEL_LOADPROGRESS_H

/* fn is called on the thread that loads, with rising numbers up to 100; NULL: nobody waits. */
struct loadprogress {
    void (*fn)(void *arg, int percent);
    void *arg;
};
#endif
