#include "device/pace.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;
using Word = uint32_t;

/// Functions of the driver, found through the runtime so that programs need not link it.
template <class Function>
Function driver(char const* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
               "cudaGetDriverEntryPointByVersion");
    PERIGEE_CHECK(found == cudaDriverEntryPointSuccess, "the driver has no {}", name);
    return reinterpret_cast<Function>(function);
}

void check(CUresult result, char const* call) {
    if (result != CUDA_SUCCESS) fail(Category::internal, "{}: error {}", call, static_cast<int>(result));
}

/// Streams write a word of the host's memory when they come to begin(), and wait for another one, which a thread of the
/// host writes when it is time. A kernel that waits would keep a multiprocessor from kernels that need all of its
/// shared memory.
class CudaPace final : public Pace {
  public:
    explicit CudaPace(CudaDevice& device)
        : device_(&device),
          write_(driver<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32")),
          wait_(driver<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32")),
          clock_([this] { run(); }) {}
    ~CudaPace() override {
        try {
            device_->synchronize();
        } catch (std::exception const&) {  // a GPU that failed waits for nothing
        }
        stops_ = true;
        clock_.join();
    }

    void begin(Queue& queue) override {
        device_->use();
        Lane& lane = of(queue);
        check(write_(stream(queue), lane.address(&Words::begun), ++lane.begins, CU_STREAM_WRITE_VALUE_DEFAULT),
              "cuStreamWriteValue32");
    }
    void end(Queue& queue, double seconds) override {
        device_->use();
        Lane& lane = of(queue);
        {
            std::lock_guard const lock(mutex_);
            lane.ends.push_back({lane.begins, ++lane.number,
                                 std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))});
        }
        check(wait_(stream(queue), lane.address(&Words::over), lane.number, CU_STREAM_WAIT_VALUE_GEQ),
              "cuStreamWaitValue32");
    }

  private:
    struct Words {
        std::atomic<Word> begun{0};  ///< number of the latest begin()
        std::atomic<Word> over{0};   ///< number of the latest end() whose time has passed
    };
    struct End {
        Word begin, number;
        Clock::duration span;
    };
    struct Lane {
        HostBuffer memory;
        Word begins = 0, number = 0;
        std::deque<End> ends = {};
        Word seen = 0;
        Clock::time_point seen_at = {};

        Words& words() const { return *static_cast<Words*>(memory.data()); }
        CUdeviceptr address(std::atomic<Word> Words::*word) const {
            return reinterpret_cast<CUdeviceptr>(&(words().*word));
        }
    };
    static cudaStream_t stream(Queue& queue) { return dynamic_cast<CudaQueue&>(queue).stream(); }

    Lane& of(Queue& queue) {
        std::lock_guard const lock(mutex_);
        auto const [at, made] = lanes_.try_emplace(&queue);
        if (made) {
            at->second.memory = HostBuffer(*device_, sizeof(Words));
            new (at->second.memory.data()) Words();
        }
        return at->second;
    }

    void run() {
        while (!stops_) {
            {
                std::lock_guard const lock(mutex_);
                for (auto& [queue, lane] : lanes_) pass_time(lane);
            }
            std::this_thread::yield();
        }
    }
    static void pass_time(Lane& lane) {
        Clock::time_point const now = Clock::now();
        if (Word const begun = lane.words().begun; begun != lane.seen) lane.seen = begun, lane.seen_at = now;
        while (!lane.ends.empty()) {
            End const& end = lane.ends.front();
            if (end.begin > lane.seen || (end.begin == lane.seen && now - lane.seen_at < end.span)) return;
            lane.words().over = end.number;
            lane.ends.pop_front();
        }
    }

    CudaDevice* device_;
    decltype(&cuStreamWriteValue32) write_;
    decltype(&cuStreamWaitValue32) wait_;
    std::mutex mutex_;
    std::map<Queue*, Lane> lanes_;
    std::atomic<bool> stops_ = false;
    std::thread clock_;
};

}  // namespace

std::unique_ptr<Pace> detail::make_cuda_pace(Device& device) {
    return std::make_unique<CudaPace>(dynamic_cast<CudaDevice&>(device));
}

}  // namespace perigee
