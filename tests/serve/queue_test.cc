// Texts that wait: room for them, and those whose request nobody waits for any longer.
#include "serve/queue.h"

#include <gtest/gtest.h>

namespace perigee::serve {

namespace {

std::shared_ptr<Exchange> of_tasks(size_t count) { return std::make_shared<Exchange>(std::vector<Task>(count)); }

TEST(WaitingTexts, ThoseThatAreAbandonedLeaveTheirPlaces) {
    WaitingTexts waiting(3);
    auto const first = of_tasks(2), second = of_tasks(1), third = of_tasks(2);
    EXPECT_TRUE(waiting.submit(first));
    EXPECT_TRUE(waiting.submit(second));
    EXPECT_FALSE(waiting.submit(third));
    first->abandon();
    EXPECT_EQ(waiting.size(), 1);
    EXPECT_TRUE(waiting.submit(third));
    EXPECT_EQ(waiting.front({})->exchange, second);
}

TEST(WaitingTexts, OneThatIsTakenIsRemovedWhateverLeftBefore) {
    WaitingTexts waiting(4);
    auto const first = of_tasks(2), second = of_tasks(2);
    ASSERT_TRUE(waiting.submit(first) && waiting.submit(second));
    auto const taken = waiting.front({});
    ASSERT_EQ(taken->exchange, first);
    first->abandon();
    EXPECT_EQ(waiting.size(), 2) << "between front() and remove()";
    waiting.remove(*taken);
    EXPECT_EQ(waiting.size(), 2);
    auto const next = waiting.front({});
    EXPECT_EQ(next->exchange, second);
    EXPECT_EQ(next->task, 0U);
    waiting.remove(*next);
    EXPECT_EQ(waiting.front({})->task, 1U);
}

}  // namespace

}  // namespace perigee::serve
