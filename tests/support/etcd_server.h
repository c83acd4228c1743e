// A cluster of etcd for a test, on ports of loopback that the kernel chose, in a new directory. It
// ends with the object, and with the test's process.
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "lib/store/store.h"

namespace entrain {

// Returns the path of the program etcd: that of Debian's package etcd-server, or that which
// tools/setup.sh etcd fetched. Returns "" if there is none.
inline std::string EtcdProgram() {
  const auto tree = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  std::stringstream folders(std::string(std::getenv("PATH")) + ":" +
                            (tree / "build/etcd/usr/bin").string());
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/etcd").c_str(), X_OK) == 0) {
      return folder + "/etcd";
    }
  }
  return {};
}

// Returns the reason why tests with etcd cannot run here, or "" if they can.
inline std::string WhyNoEtcd() {
  const auto opened = OpenStore("etcd://127.0.0.1:1", "", {Deadline::After(0)});
  return absl::IsUnimplemented(opened.status()) || absl::IsFailedPrecondition(opened.status())
             ? std::string(opened.status().message())
         : EtcdProgram().empty() ? "etcd (Debian: etcd-server) is not installed"
                                 : "";
}

class EtcdServer {
 public:
  explicit EtcdServer(int members = 1) {
    std::string pattern = ::testing::TempDir() + "entrain-etcd-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    const std::vector<int> ports = FreePorts(2 * members);
    std::string cluster;
    for (int i = 0; i < members; ++i) {
      const std::string name = "m" + std::to_string(i);
      members_.push_back({name, Http(ports[2 * static_cast<size_t>(i)]),
                          Http(ports[2 * static_cast<size_t>(i) + 1]),
                          ports[2 * static_cast<size_t>(i)]});
      cluster += (i == 0 ? "" : ",") + name + "=" + members_.back().peer_url;
    }
    for (Member& member : members_) {
      Start(member, cluster);
    }
    // The cluster is ready when a store opens over each member.
    for (const Member& member : members_) {
      const auto opened = OpenStore("etcd://127.0.0.1:" + std::to_string(member.port), "",
                                    {Deadline::After(30 * kSecond)});
      EXPECT_TRUE(opened.ok()) << opened.status() << "\n" << Log(member);
    }
  }
  ~EtcdServer() {
    for (size_t i = 0; i < members_.size(); ++i) {
      Kill(i);
    }
    std::filesystem::remove_all(directory_);
  }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  // Returns the URL of a store over all members, beginning with member `first`.
  std::string url(const std::string& prefix = "", size_t first = 0) const {
    std::string hosts;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Member& member = members_[(first + i) % members_.size()];
      hosts += (i == 0 ? "" : ",") + std::string("127.0.0.1:") + std::to_string(member.port);
    }
    return "etcd://" + hosts + (prefix.empty() ? "" : "/" + prefix);
  }
  size_t size() const { return members_.size(); }
  // Returns the client URL of a member, in the form for etcd's own tools.
  std::string http(size_t member) const { return members_[member].client_url; }
  void Kill(size_t member) {
    if (members_[member].pid > 0) {
      kill(members_[member].pid, SIGKILL);
      waitpid(members_[member].pid, nullptr, 0);
      members_[member].pid = -1;
    }
  }
  // Sends SIGSTOP or SIGCONT to a member.
  void Signal(size_t member, int signal) const { kill(members_[member].pid, signal); }

 private:
  struct Member {
    std::string name, client_url, peer_url;
    int port = 0;
    pid_t pid = -1;
  };

  static std::string Http(int port) { return "http://127.0.0.1:" + std::to_string(port); }
  // Returns different ports, which are free when the function returns.
  static std::vector<int> FreePorts(int count) {
    std::vector<int> ports, sockets;
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
      socklen_t length = sizeof(address);
      EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
      ports.push_back(ntohs(address.sin_port));
      sockets.push_back(fd);
    }
    for (const int fd : sockets) {
      close(fd);
    }
    return ports;
  }
  std::string Log(const Member& member) const {
    std::ifstream in(directory_ + "/" + member.name + ".log");
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void Start(Member& member, const std::string& cluster) const {
    const std::string program = EtcdProgram(), log = directory_ + "/" + member.name + ".log";
    std::vector<std::string> arguments = {program,
                                          "--name=" + member.name,
                                          "--data-dir=" + directory_ + "/" + member.name,
                                          "--listen-client-urls=" + member.client_url,
                                          "--advertise-client-urls=" + member.client_url,
                                          "--listen-peer-urls=" + member.peer_url,
                                          "--initial-advertise-peer-urls=" + member.peer_url,
                                          "--initial-cluster=" + cluster,
                                          "--initial-cluster-token=" + directory_};
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    member.pid = fork();
    if (member.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(out, 1);
      dup2(out, 2);
      if (getppid() == parent) {
        execv(argv[0], argv.data());
      }
      _exit(126);
    }
  }

  std::string directory_;
  std::vector<Member> members_;
};

}  // namespace entrain
