#include <fmt/ranges.h>

#include "config/scalars.h"
#include "config/schema_yaml.h"

namespace perigee {
namespace {

constexpr int kIndent = 2;

class Writer {
  public:
    void fields(Schema const& schema, int indent) {
        for (Field const& field : schema.fields()) {
            start_line(indent);
            out_ += field.key + ":";
            std::visit([&](auto const& target) { value(target, indent); }, field.target);
        }
    }
    std::string take() { return std::move(out_); }

  private:
    /// A list item's first key follows its dash.
    void start_line(int indent) {
        if (!after_dash_) out_.append(static_cast<size_t>(indent), ' ');
        after_dash_ = false;
    }
    void scalar(std::string const& text) { out_ += fmt::format(" {}\n", text); }

    void value(bool const* target, int) { scalar(*target ? "true" : "false"); }
    void value(int64_t const* target, int) { scalar(fmt::format("{}", *target)); }
    void value(double const* target, int) { scalar(write_number(*target)); }
    void value(std::string const* target, int) { scalar(write_text(*target)); }
    void value(std::vector<int64_t> const* target, int) { scalar(fmt::format("[{}]", fmt::join(*target, ", "))); }
    void value(Field::Choice const& target, int) { scalar(write_text(target.names.at(target.selected()))); }
    void value(Field::Section const& target, int indent) {
        out_ += "\n";
        fields(*target.schema, indent + kIndent);
    }
    void value(Field::List const& target, int indent) {
        if (target.size() == 0) return scalar("[]");
        out_ += "\n";
        for (size_t i = 0; i < target.size(); ++i) {
            start_line(indent + kIndent);
            out_ += "- ";
            after_dash_ = true;
            fields(target.at(i), indent + 2 * kIndent);
        }
    }

    std::string out_;
    bool after_dash_ = false;
};

}  // namespace

std::string write_yaml(Schema const& schema) {
    Writer writer;
    writer.fields(schema, 0);
    return writer.take();
}

}  // namespace perigee
