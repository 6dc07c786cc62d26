/* executor_stress.c: hammers the pool and the executor from several callers while threads are resized and runs are
 * aborted; compiled with a sanitizer by test_executor_sanitizers.py. Prints "good" when every sum is right. */
#include "ggfw_executor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 24, WIDTH = 32, STEPS = 60, ROUNDS = 40, CALLERS = 3 };

static int32_t chunks(const ggfw_step *s, const ggfw_run *r, int32_t begin, int32_t end) {
    (void)r;
    return s->params.custom.i[0] == 1 ? 1 : end - begin; /* some steps are one chunk */
}
static void add_run(const ggfw_step *s, const ggfw_run *r, int32_t begin, int32_t end, int32_t chunk, void *scratch) {
    int32_t first = s->params.custom.i[0] == 1 ? begin : begin + chunk, last = s->params.custom.i[0] == 1 ? end : first + 1;
    for (int32_t row = first; row < last; row++) {
        float *x = (float *)(r->arena + s->in[0].offset + (int64_t)row * s->in[0].stride);
        memcpy(scratch, x, WIDTH * sizeof *x);
        for (int i = 0; i < WIDTH; i++) x[i] = ((float *)scratch)[i] + 1.0f;
    }
}
static int64_t scratch_size(const ggfw_step *s, const ggfw_run *r) {
    (void)s;
    (void)r;
    return WIDTH * (int64_t)sizeof(float);
}
static const ggfw_kernel add = {
    .name = "add", .op = GGFW_OP_CUSTOM, .scratch_size = scratch_size, .n_chunks = chunks, .run = add_run};

static void *caller(void *seed) {
    ggfw_step steps[STEPS];
    memset(steps, 0, sizeof steps);
    for (int i = 0; i < STEPS; i++) {
        steps[i].op = GGFW_OP_CUSTOM;
        steps[i].decode = steps[i].prompt = &add;
        steps[i].in[0] = steps[i].out[0] = (ggfw_view){0, 128, WIDTH, GGFW_F32, 0};
        steps[i].params.custom.i[0] = i % 5 == 4;
        steps[i].params.custom.state = -1;
    }
    ggfw_executor *e = ggfw_executor_new(steps, STEPS, 128 * ROWS, ROWS, 1, NULL, 0, NULL, 0, 0);
    int32_t positions[ROWS], row_segment[ROWS];
    for (int i = 0; i < ROWS; i++) positions[i] = i, row_segment[i] = 0;
    ggfw_segment segment = {.n_rows = ROWS, .row_class = GGFW_ROWS_DECODE, .state_read = -1, .output = -1};
    ggfw_batch batch = {.n_rows = ROWS, .n_decode_rows = ROWS, .n_segments = 1, .positions = positions,
                        .row_segment = row_segment, .segments = &segment};
    intptr_t bad = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint8_t *arena = ggfw_executor_arena(e);
        memset(arena, 0, 128 * ROWS);
        if (ggfw_executor_run(e, &batch, 0, -1) != GGFW_OK) bad++;
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < WIDTH; j++) bad += ((float *)(arena + 128 * i))[j] != STEPS;
        if ((round + (intptr_t)seed) % 7 == 0) ggfw_threads_set(1 + (round + (int)(intptr_t)seed) % 6, round % 3 * 20);
        if (round % 5 == 0) usleep(200);
    }
    ggfw_executor_free(e);
    return (void *)bad;
}

int main(void) {
    ggfw_threads_set(3, 50);
    pthread_t threads[CALLERS];
    for (intptr_t i = 0; i < CALLERS; i++) pthread_create(&threads[i], NULL, caller, (void *)i);
    intptr_t bad = 0;
    for (int i = 0; i < CALLERS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (intptr_t)result;
    }
    ggfw_threads_set(1, 0); /* joins the workers: nothing is left behind */
    puts(bad == 0 ? "good" : "bad");
    return bad != 0;
}
