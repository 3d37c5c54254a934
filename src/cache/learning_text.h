// learning_text.h — what the archive is and why, in one sentence for people.
#pragma once

#include <string>

#include "plan/plans.h"
#include "tierkv/learning.h"

namespace tierkv::cache {

// "learning this model: 3,100 of 8,192 tokens; older tokens wait at 4 bits", "calibrated; archive 2.03 bits",
// "archive rot2/mid2, not calibrated: WHY". `note`: what else there is to say, or empty.
std::string learning_sentence(const LearningReport& report, const std::string& note, const plan::Plans& plans);

}  // namespace tierkv::cache
