// Where kernel files leave their launchers, by name, and the ladder finds them. Free of CUDA, so that a build without it has a
// ladder too: with empty places.
#pragma once

#include <map>
#include <string>

namespace treduce::reduce {

struct Call;
std::map<std::string, int (*)(const Call&)>& launchers();

}  // namespace treduce::reduce
