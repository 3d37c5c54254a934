// progress.h — how a solver says how far it is.
#pragma once

#include <functional>

namespace tierkv::solve {

using Progress = std::function<void(double done)>;  // 0..1; may be empty. Called by the thread that called the solver

}  // namespace tierkv::solve
