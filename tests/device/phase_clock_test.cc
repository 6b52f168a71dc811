#include "device/phase_clock.h"

#include <gtest/gtest.h>

#include "device/queue.h"
#include "device/trace.h"

namespace perigee {
namespace {

// A queue whose points have the moments that a test gives them, and are reached when it says so.
class Moment final : public Event::Point {
  public:
    bool reached() const noexcept override { return reached_; }
    double seconds_since(Point const& earlier) const override {
        return seconds - dynamic_cast<Moment const&>(earlier).seconds;
    }
    double seconds = 0;
    bool reached_ = true;
};

class PhaseClockTest : public ::testing::Test {
  protected:
    class Stamps final : public Queue {
      public:
        explicit Stamps(Device& device) : Queue(device, "stamps") {}
        Event record() override { return {}; }
        Event stamp() override {
            if (failed) throw std::runtime_error("the GPU has failed");
            auto const moment = std::make_shared<Moment>();
            moment->seconds = now;
            moment->reached_ = reaches;
            points.push_back(moment);
            return Event(moment);
        }
        void wait(Event const&) override {}
        void copy(void*, void const*, size_t) override {}
        void call(std::function<void()> const& work) override { work(); }
        void synchronize() override {}
        double now = 0;
        bool reaches = true, failed = false;
        std::vector<std::shared_ptr<Moment>> points;
    };

    void enter(double moment, Phase phase) {
        queue_.now = moment;
        clock_.enter(queue_, phase);
    }
    static double of(PhaseSeconds const& seconds, Phase phase) { return seconds.at(static_cast<size_t>(phase)); }

    std::unique_ptr<Device> device_ = make_host_device();
    Stamps queue_{*device_};
    PhaseClock clock_;
};

TEST_F(PhaseClockTest, AddsUpTheTimeBetweenPhases) {
    clock_.start();
    enter(0, Phase::data);
    enter(1, Phase::forward);
    enter(3, Phase::backward);
    enter(7, Phase::forward);
    enter(7.5, Phase::backward);
    enter(8.5, Phase::none);
    PhaseSeconds const seconds = clock_.take();
    EXPECT_EQ(of(seconds, Phase::data), 1);
    EXPECT_EQ(of(seconds, Phase::forward), 2.5);
    EXPECT_EQ(of(seconds, Phase::backward), 5);
    EXPECT_EQ(of(seconds, Phase::optimizer), 0);
    enter(100, Phase::data);
    enter(101, Phase::none);
    EXPECT_EQ(of(clock_.take(), Phase::data), 1) << "what was told is not told again, and the pause is no phase";
}

TEST_F(PhaseClockTest, IsOffUntilStarted) {
    enter(0, Phase::data);
    enter(1, Phase::none);
    EXPECT_EQ(clock_.take(), PhaseSeconds{});
    EXPECT_TRUE(queue_.points.empty());
}

TEST_F(PhaseClockTest, LeavesToALaterCallWhatTheDeviceStillWorksOn) {
    clock_.start();
    enter(0, Phase::forward);
    enter(1, Phase::optimizer);
    queue_.reaches = false;
    enter(4, Phase::none);
    PhaseSeconds const first = clock_.take();
    EXPECT_EQ(of(first, Phase::forward), 1);
    EXPECT_EQ(of(first, Phase::optimizer), 0);
    queue_.points.back()->reached_ = true;
    queue_.reaches = true;
    enter(10, Phase::data);
    enter(11, Phase::none);
    PhaseSeconds const second = clock_.take();
    EXPECT_EQ(of(second, Phase::forward), 0);
    EXPECT_EQ(of(second, Phase::optimizer), 3);
    EXPECT_EQ(of(second, Phase::data), 1);
}

TEST_F(PhaseClockTest, DividesWhatIsQueuedAgainAsItsLastTime) {
    clock_.start();
    enter(0, Phase::forward);
    clock_.begin_noting();
    enter(0, Phase::backward);  // a point of what is noted, not of now
    auto const noted = clock_.end_noting();
    ASSERT_EQ(noted.size(), 1U);
    clock_.queued_again(*device_, noted);
    enter(4, Phase::forward);
    clock_.queued_again(*device_, noted);
    queue_.points[1]->seconds = 6;  // the second time: 2 seconds forward, 6 backward
    enter(12, Phase::none);
    PhaseSeconds const seconds = clock_.take();
    EXPECT_EQ(of(seconds, Phase::forward), 1 + 2);
    EXPECT_EQ(of(seconds, Phase::backward), 3 + 6);
}

TEST_F(PhaseClockTest, NotingThatFailedLeavesThePhaseAsItWas) {
    clock_.start();
    enter(0, Phase::forward);
    clock_.begin_noting();
    enter(0, Phase::backward);
    clock_.end_noting();
    enter(1, Phase::backward);  // now run for good
    enter(3, Phase::none);
    PhaseSeconds const seconds = clock_.take();
    EXPECT_EQ(of(seconds, Phase::forward), 1);
    EXPECT_EQ(of(seconds, Phase::backward), 2);
}

TEST_F(PhaseClockTest, AScopeCountsWithinAPhaseAlone) {
    PhaseClock& clock = device_->phases();
    clock.start();
    { InPhase const idle(queue_, Phase::communication); }
    EXPECT_TRUE(queue_.points.empty()) << "an evaluation's communication is no part of a step";
    clock.enter(queue_, Phase::forward);
    {
        queue_.now = 1;
        InPhase const sending(queue_, Phase::communication);
        queue_.now = 3;
    }
    EXPECT_EQ(clock.now(), Phase::forward);
    queue_.now = 4;
    clock.enter(queue_, Phase::none);
    PhaseSeconds const seconds = clock.take();
    EXPECT_EQ(of(seconds, Phase::communication), 2);
    EXPECT_EQ(of(seconds, Phase::forward), 2);
}

TEST_F(PhaseClockTest, ScopesOfAGpuThatFailsPassTheFirstErrorOn) {
    device_->phases().start();
    device_->phases().enter(queue_, Phase::forward);
    device_->trace().start(queue_);
    auto const gather = [&] {
        InPhase const sending(queue_, Phase::communication);
        InSpan const span(queue_, "all_gather");
        queue_.failed = true;
        throw std::logic_error("all_gather failed");
    };
    EXPECT_THROW(gather(), std::logic_error);
}

TEST_F(PhaseClockTest, TellsCommunicationByItsParts) {
    PhaseClock& clock = device_->phases();
    clock.start(true);
    clock.enter(queue_, Phase::forward, 7);
    auto const send = [&](double begin, double end, int part) {
        queue_.now = begin;
        InPhase const sending(queue_, Phase::communication, part);
        queue_.now = end;
    };
    send(1, 3, 1);
    send(4, 4.5, 2);
    {
        queue_.now = 5;
        InPhase const sending(queue_, Phase::communication, 2);
        send(6, 8, 1);  // within another
        EXPECT_EQ(clock.part(), 2);
        queue_.now = 9;
    }
    EXPECT_EQ(clock.part(), 7);
    queue_.now = 10;
    clock.enter(queue_, Phase::none);
    PhaseSeconds const seconds = clock.take();
    EXPECT_EQ(of(seconds, Phase::communication), 6.5);
    EXPECT_EQ(of(seconds, Phase::forward), 3.5);
    EXPECT_EQ(clock.take_communication(), (std::map<int, std::vector<double>>{{1, {2, 2}}, {2, {0.5, 1, 1}}}));
    EXPECT_TRUE(clock.take_communication().empty()) << "what was told is not told again";
}

TEST_F(PhaseClockTest, ListsNoCommunicationUnasked) {
    clock_.start();
    enter(0, Phase::communication);
    enter(2, Phase::none);
    EXPECT_EQ(of(clock_.take(), Phase::communication), 2);
    EXPECT_TRUE(clock_.take_communication().empty()) << "in training nobody takes it";
}

TEST_F(PhaseClockTest, WhatIsQueuedAgainKeepsItsParts) {
    clock_.start(true);
    enter(0, Phase::forward);
    clock_.begin_noting();
    clock_.enter(queue_, Phase::communication, 3);
    auto const noted = clock_.end_noting();
    EXPECT_EQ(clock_.part(), 0);
    clock_.queued_again(*device_, noted);
    queue_.points[1]->seconds = 1;
    enter(4, Phase::none);
    EXPECT_EQ(of(clock_.take(), Phase::communication), 3);
    EXPECT_EQ(clock_.take_communication(), (std::map<int, std::vector<double>>{{3, {3}}}));
}

TEST(HostStamps, TellTheSecondsBetweenThem) {
    auto const device = make_host_device();
    Event const first = device->queue().stamp(), second = device->queue().stamp();
    EXPECT_TRUE(second.reached());
    EXPECT_GE(second.seconds_since(first), 0);
    EXPECT_LT(second.seconds_since(first), 60);
    EXPECT_EQ(second.seconds_since(Event()), 0);
}

/// The host, whose ranges can be looked at.
class Ranged final : public Device {
  public:
    Queue& queue() override { return host_->queue(); }
    Queue& lane(std::string const& name, Priority priority) override { return host_->lane(name, priority); }
    void* allocate(size_t bytes) override { return host_->allocate(bytes); }
    void release(void* memory) noexcept override { host_->release(memory); }
    void copy(void* to, void const* from, size_t bytes) override { host_->copy(to, from, bytes); }
    void* allocate_host(size_t bytes) override { return host_->allocate_host(bytes); }
    void release_host(void* memory) noexcept override { host_->release_host(memory); }
    void synchronize() override {}
    std::string name() const override { return "ranged"; }
    bool is_host() const override { return true; }
    void begin_range(char const* name) noexcept override { open.emplace_back(name); }
    void end_range() noexcept override { open.pop_back(); }
    std::vector<std::string> open;

  private:
    std::unique_ptr<Device> host_ = make_host_device();
};

TEST(PhaseRanges, OneIsOpenAsLongAsItsPhaseLasts) {
    Ranged device;
    ImmediateQueue queue(device, "queue");
    PhaseClock clock;
    clock.enter(queue, Phase::forward);
    EXPECT_TRUE(device.open.empty()) << "not started";
    clock.start();
    clock.enter(queue, Phase::forward);
    EXPECT_EQ(device.open, std::vector<std::string>{"forward"});
    clock.begin_noting();
    clock.enter(queue, Phase::backward);
    auto const noted = clock.end_noting();
    clock.queued_again(device, noted);
    EXPECT_EQ(device.open, std::vector<std::string>{"backward"});
    clock.enter(queue, Phase::optimizer);
    EXPECT_EQ(device.open, std::vector<std::string>{"optimizer"});
    clock.enter(queue, Phase::none);
    EXPECT_TRUE(device.open.empty());
}

}  // namespace
}  // namespace perigee
