#include "serve/job.h"

namespace tierkv::serve {

const char* finish_name(Finish finish) { return finish == Finish::stop ? "stop" : "length"; }

}  // namespace tierkv::serve
