// sampler_pool.cpp: the threads that sample a step's rows, and the C entry points.
#include "sampler_internal.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

struct hs_sampler {
    int                                       n_vocab;
    const hs::kernels                        *kern;
    std::vector<hs_job>                       jobs;
    std::vector<int32_t>                      lead; // first job with the same logits row
    std::vector<std::unique_ptr<hs::scratch>> scratch; // per thread; 0 is the caller's
    std::vector<std::thread>                  threads;

    std::mutex              mu;
    std::condition_variable wake, idle;
    uint64_t                round   = 0; // counts hs_sample calls that used the pool
    int                     wanted  = 0; // helpers this round still takes
    int                     working = 0; // helpers inside the round
    bool                    stop    = false;

    int32_t              n = 0; // jobs of this round
    std::atomic<int32_t> next{0};

    // Takes jobs until none is left. Jobs over one row follow their leader,
    // since a row is edited while it is sampled.
    void work(hs::scratch &s) {
        for (int32_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
            if (lead[i] != i) continue;
            for (int32_t j = i; j < n; j++) {
                if (lead[j] != i) continue;
                try {
                    hs::sample_row(s, jobs[j].row, jobs[j].logits);
                } catch (const std::bad_alloc &) {
                    jobs[j].row->status = HS_NOMEM;
                } catch (...) {
                    jobs[j].row->status = HS_EXCEPTION;
                }
            }
        }
    }

    void helper(int id) {
        std::unique_lock<std::mutex> lock(mu);
        for (uint64_t seen = 0;;) {
            wake.wait(lock, [&] { return stop || (round != seen && wanted > 0); });
            if (stop) return;
            seen = round;
            wanted--;
            working++;
            lock.unlock();
            work(*scratch[id]);
            lock.lock();
            if (--working == 0) idle.notify_one();
        }
    }

    ~hs_sampler() {
        {
            std::lock_guard<std::mutex> lock(mu);
            stop = true;
        }
        wake.notify_all();
        for (auto &t : threads) t.join();
    }
};

hs_sampler *hs_sampler_new(int32_t n_vocab, int32_t threads, int32_t max_jobs, int32_t simd) {
    try {
        auto s     = std::make_unique<hs_sampler>();
        s->n_vocab = n_vocab;
        s->kern    = &hs::kernels_up_to(simd);
        s->jobs.resize((size_t) max_jobs);
        s->lead.resize((size_t) max_jobs);
        for (int i = 0; i < threads; i++) s->scratch.push_back(std::make_unique<hs::scratch>(n_vocab, s->kern));
        for (int i = 1; i < threads; i++) s->threads.emplace_back([p = s.get(), i] { p->helper(i); });
        return s.release();
    } catch (const std::exception &) {
        return nullptr;
    }
}

void    hs_sampler_free(hs_sampler *s) { delete s; }
hs_job *hs_sampler_jobs(hs_sampler *s) { return s->jobs.data(); }
int32_t hs_sampler_simd(const hs_sampler *s) { return hs::level_of(*s->kern); }

int hs_sample(hs_sampler *s, int32_t n) {
    int rows = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = 0;
        while (s->jobs[j].logits != s->jobs[i].logits) j++;
        s->lead[i] = j;
        rows += j == i;
    }
    s->n = n;
    s->next.store(0, std::memory_order_relaxed);
    int helpers = std::min((int) s->threads.size(), rows - 1);
    if (helpers > 0) {
        {
            std::lock_guard<std::mutex> lock(s->mu);
            s->round++;
            s->wanted = helpers;
        }
        if (helpers == 1) s->wake.notify_one();
        else s->wake.notify_all();
    }
    s->work(*s->scratch[0]);
    if (helpers > 0) {
        std::unique_lock<std::mutex> lock(s->mu);
        s->wanted = 0; // whoever has not come yet is too late
        s->idle.wait(lock, [&] { return s->working == 0; });
    }
    for (int32_t i = 0; i < n; i++)
        if (s->jobs[i].row->status != HS_OK) return s->jobs[i].row->status;
    return HS_OK;
}

int32_t hs_candidates(hs_sampler *s, hs_row *r, float *logits, int32_t k, int32_t *tok, float *logit, double *rest) {
    try {
        return hs::top_candidates(*s->scratch[0], r, logits, k, tok, logit, rest);
    } catch (...) {
        return HS_NOMEM;
    }
}

int hs_resample(hs_sampler *s, hs_row *r, const float *logits, const int32_t *allowed, int32_t n) {
    try {
        hs::resample_row(*s->scratch[0], r, logits, allowed, n);
        return r->status;
    } catch (...) {
        return HS_NOMEM;
    }
}

int32_t hs_distribution(hs_sampler *s, hs_row *r, float *logits, int32_t cap, int32_t *tok, float *prob) {
    try {
        return hs::distribution(*s->scratch[0], r, logits, cap, tok, prob);
    } catch (...) {
        return HS_NOMEM;
    }
}
