// What jobs that were killed leave behind: Open MPI's shared memory and folders, and those of launch/mpirun.sh.
#pragma once

namespace perigee {

/// Removes what belongs to this user and host and to no living process: segments in /dev/shm that no process has open
/// or mapped, session folders of an mpirun that does not live, and folders of launch/mpirun.sh that nobody holds
/// locked. When in doubt, and when anything goes wrong, it stays.
void remove_leftovers() noexcept;

}  // namespace perigee
