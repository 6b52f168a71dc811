#include "train/line_file.h"

#include <utility>

namespace perigee {

void LineFile::append_bytes(std::string const& bytes) {
    std::scoped_lock const lock(mutex_);
    if (waiting_.size() + bytes.size() <= kMostWaitingBytes) {
        waiting_ += bytes;
        ++lines_;
    } else {
        ++lost_;
    }
    write();
}

bool LineFile::flush() {
    std::scoped_lock const lock(mutex_);
    write();
    try {
        if (unsynced_ > 0) file_->sync();
    } catch (Error const& e) {  // which of the lines are there is not known
        lost_ += unsynced_;
        news_ = fmt::format("the last {} lines of {} may be lost: {}", unsynced_, path_.string(), e.what());
    }
    unsynced_ = 0;
    return lines_ == 0 && lost_ == 0;
}

std::string LineFile::take_waiting() {
    std::scoped_lock const lock(mutex_);
    lines_ = delayed_ = 0;
    return std::exchange(waiting_, {});
}

std::string LineFile::news() {
    std::scoped_lock const lock(mutex_);
    return std::exchange(news_, {});
}

int64_t LineFile::missing() const {
    std::scoped_lock const lock(mutex_);
    return lines_ + lost_;
}

void LineFile::was_cut() {
    std::scoped_lock const lock(mutex_);
    if (!file_) return;
    file_ = files_->append(path_);  // the file may be another one, or a new one
    end_ = files_->file_size(path_);
    unsynced_ = 0;
}

void LineFile::write() {
    if (waiting_.empty()) return;
    try {
        if (!file_) {
            end_ = files_->exists(path_) ? files_->file_size(path_) : 0;
            file_ = files_->append(path_);
        }
        file_->write_at(end_, std::as_bytes(std::span(waiting_)));
        end_ += std::ssize(waiting_);
        waiting_.clear();
        unsynced_ += std::exchange(lines_, 0);
        if (!std::exchange(failing_, false)) return;
        news_ = fmt::format("{} can be written again: {} lines that waited are in it", path_.string(),
                            std::exchange(delayed_, 0));
        if (lost_ > 0) news_ += fmt::format(", {} were lost", lost_);
    } catch (Error const& e) {
        delayed_ = lines_;
        if (!std::exchange(failing_, true))
            news_ = fmt::format("lines of {} wait in memory until it can be written: {}", path_.string(), e.what());
        try {  // for those who read it meanwhile; the next attempt begins at end_ in any case
            if (file_) file_->truncate(end_);
        } catch (Error const&) {
        }
    }
}

}  // namespace perigee
