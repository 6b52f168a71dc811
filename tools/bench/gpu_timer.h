// Milliseconds of work on a CUDA stream.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace perigee {

/// Rests for some seconds, as what ran before would have a say in the GPU's clock, runs work back to back for others,
/// so that the GPU is as warm and as short of power as in training, and takes the median.
class GpuTimer {
  public:
    GpuTimer(cudaStream_t stream, double seconds, double rest)
        : stream_(stream), seconds_(seconds), rest_(rest), events_(kMostRuns + 1) {
        for (cudaEvent_t& event : events_) check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    }
    ~GpuTimer() {
        for (cudaEvent_t event : events_) cudaEventDestroy(event);
    }
    GpuTimer(GpuTimer const&) = delete;
    GpuTimer& operator=(GpuTimer const&) = delete;

    double operator()(std::function<void()> const& work) {
        std::this_thread::sleep_for(rest_);
        run(work, 1);  // loads kernels
        double const estimate = std::max(run(work, 1), 1e-3);
        return run(work, std::clamp(static_cast<int>(seconds_ * 1e3 / estimate), 3, kMostRuns));
    }

  private:
    static constexpr int kMostRuns = 1000;

    double run(std::function<void()> const& work, int runs) {
        for (int i = 0; i <= runs; ++i) {
            check_cuda(cudaEventRecord(events_[i], stream_), "cudaEventRecord");
            if (i < runs) work();
        }
        check_cuda(cudaEventSynchronize(events_[runs]), "cudaEventSynchronize");
        std::vector<float> times(runs);
        for (int i = 0; i < runs; ++i)
            check_cuda(cudaEventElapsedTime(&times[i], events_[i], events_[i + 1]), "cudaEventElapsedTime");
        std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
        return times[runs / 2];
    }

    cudaStream_t stream_;
    double seconds_;
    std::chrono::duration<double> rest_;
    std::vector<cudaEvent_t> events_;
};

}  // namespace perigee
