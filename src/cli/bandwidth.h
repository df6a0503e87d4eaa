/* bandwidth.h - the memory's read bandwidth, as the upper bound of decoding speed. */
#ifndef TERN_CLI_BANDWIDTH_H
#define TERN_CLI_BANDWIDTH_H

/* GB/s with n_threads pinned threads over memory larger than the caches (1 GiB, less where there is
 * no room): the best of five passes. 0: it could not be measured. */
double bandwidth_measure(int n_threads);
#endif
